// How the attention of one step is cut into items of work: the same for every layer.
#pragma once
#include <cstdint>
#include <vector>

#include "runtime/core/core.h"

namespace precast {

// Query rows of one sequence that are computed together.
struct AttentionTile {
  int32_t first_row, rows;
  int32_t first_position;
  int32_t splits;        // context splits up to its last row
  int32_t block_table;   // where the sequence's begins in StepBatch::block_tables
  int64_t partials = 0;  // number of partial states of tiles before it; see AttentionSchedule::split
};

struct AttentionItem {
  int32_t tile;
  int32_t split;
};

struct AttentionSchedule {
  std::vector<AttentionTile> tiles;  // the most work first, so that the last items are short
  // Whether each context split of a tile is an item of its own: when there would be too few items for the threads.
  // A tile's splits are merged in rising order either way, so the results are the same.
  bool split = false;
  std::vector<AttentionItem> items;  // when split
};

struct AttentionLimits {
  int32_t tile_rows;     // most rows of a tile
  int32_t wanted_items;  // with fewer (tile, KV head) pairs, splits become items
  int32_t num_kv_heads;
  int64_t max_partials;  // partial states, of one row each, that there is memory for
};

void schedule_attention(const StepBatch& batch, const AttentionLimits& limits, AttentionSchedule& schedule);

}  // namespace precast
