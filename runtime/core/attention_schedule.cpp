#include "runtime/core/attention_schedule.h"

#include <algorithm>

#include "plugins/cpu/kernels.h"

namespace precast {

void schedule_attention(const StepBatch& batch, const AttentionLimits& limits, AttentionSchedule& schedule) {
  schedule.tiles.clear();
  schedule.items.clear();
  for (const StepSequence& sequence : batch.sequences) {
    for (int32_t row = 0; row < sequence.num_rows; row += limits.tile_rows) {
      AttentionTile tile;
      tile.first_row = sequence.first_row + row;
      tile.rows = std::min(limits.tile_rows, sequence.num_rows - row);
      tile.first_position = sequence.first_position + row;
      tile.splits = (tile.first_position + tile.rows - 1) / kContextSplit + 1;
      tile.block_table = sequence.block_table;
      schedule.tiles.push_back(tile);
    }
  }
  const auto work = [](const AttentionTile& t) { return int64_t{t.rows} * (t.first_position + t.rows); };
  std::stable_sort(schedule.tiles.begin(), schedule.tiles.end(),
                   [&](const AttentionTile& a, const AttentionTile& b) { return work(a) > work(b); });
  int64_t partials = 0;
  for (AttentionTile& tile : schedule.tiles) {
    tile.partials = partials;
    partials += int64_t{tile.rows} * tile.splits;
  }
  const auto pairs = static_cast<int64_t>(schedule.tiles.size()) * limits.num_kv_heads;
  schedule.split = pairs < limits.wanted_items && partials <= limits.max_partials;
  if (!schedule.split) return;
  for (size_t i = 0; i < schedule.tiles.size(); ++i) {
    for (int32_t split = 0; split < schedule.tiles[i].splits; ++split) {
      schedule.items.push_back({static_cast<int32_t>(i), split});
    }
  }
}

}  // namespace precast
