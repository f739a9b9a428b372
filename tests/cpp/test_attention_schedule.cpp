#include <doctest/doctest.h>

#include <vector>

#include "plugins/cpu/kernels.h"
#include "runtime/core/attention_schedule.h"

namespace precast {
namespace {

StepBatch batch_of(const std::vector<std::pair<int32_t, int32_t>>& rows_and_positions) {
  StepBatch batch;
  std::vector<PageId>& tables = batch.block_tables.emplace_back();
  int32_t row = 0;
  for (const auto& [rows, position] : rows_and_positions) {
    batch.sequences.push_back({row, rows, position, static_cast<int32_t>(tables.size())});
    tables.resize(tables.size() + static_cast<size_t>((position + rows + 31) / 32), 0);
    row += rows;
  }
  batch.tokens.resize(static_cast<size_t>(row));
  return batch;
}

TEST_CASE("tiles cover every row once, at its position") {
  const StepBatch batch = batch_of({{1, 700}, {100, 0}, {7, 255}, {33, 5000}});
  for (const int32_t tile_rows : {1, 3, 16, 64}) {
    AttentionSchedule schedule;
    schedule_attention(batch, {tile_rows, 0, 2, 1000}, schedule);
    CHECK(!schedule.split);
    std::vector<int32_t> position(batch.tokens.size(), -1);
    for (const AttentionTile& tile : schedule.tiles) {
      CHECK(tile.rows <= tile_rows);
      CHECK((tile.splits - 1) * kContextSplit <= tile.first_position + tile.rows - 1);
      CHECK(tile.splits * kContextSplit > tile.first_position + tile.rows - 1);
      for (int32_t r = 0; r < tile.rows; ++r) {
        int32_t& at = position[static_cast<size_t>(tile.first_row + r)];
        CHECK(at == -1);
        at = tile.first_position + r;
      }
    }
    for (const StepSequence& s : batch.sequences) {
      for (int32_t r = 0; r < s.num_rows; ++r) {
        CHECK(position[static_cast<size_t>(s.first_row + r)] == s.first_position + r);
      }
    }
  }
}

TEST_CASE("the most work comes first") {
  AttentionSchedule schedule;
  schedule_attention(batch_of({{1, 10}, {1, 9000}, {16, 0}, {1, 300}}), {16, 0, 1, 1000}, schedule);
  CHECK(schedule.tiles[0].first_position == 9000);
  CHECK(schedule.tiles.back().first_position == 10);
}

TEST_CASE("splits become items when there are few tiles, and room for their results") {
  const StepBatch batch = batch_of({{1, 4000}, {2, 100}});
  AttentionSchedule schedule;
  schedule_attention(batch, {8, 5, 2, 18}, schedule);
  CHECK(schedule.split);
  CHECK(schedule.items.size() == 16 + 1);
  CHECK(schedule.tiles[0].partials == 0);
  CHECK(schedule.tiles[1].partials == 16);
  schedule_attention(batch, {8, 4, 2, 18}, schedule);  // enough tiles
  CHECK(!schedule.split);
  CHECK(schedule.items.empty());
  schedule_attention(batch, {8, 5, 2, 17}, schedule);  // one row's state too few
  CHECK(!schedule.split);
}

}  // namespace
}  // namespace precast
