// y = x·Wᵀ with int8 weights and int8 activations.
//
// Two panels meet all tiles of a call, a part of K after the other: memory brings the next part while the tiles are
// multiplied with this one, which stays in the L1 cache. Sums wait in memory between the parts; that changes no bit.
#include "plugins/linear/cpu/dot_i8.h"
#include "plugins/linear/cpu/epilogue.h"

namespace precast::PRECAST_LEVEL {

namespace {

constexpr int kBlockPanels = 2;  // the epilogue wants gate and up together

// The arguments of dot_i8 but the rows, whose number is known to the compiler there.
struct Dots {
  const Weight8* w;
  int64_t panel_bytes;
  const QuantizedTile* x;
  int first, tiles;
  const Part& part;
  float* acc;
  int64_t acc_stride;
};

template <int Panels, int Columns>
void dots(const Dots& d, int rows) {
  switch (rows) {
#define PRECAST_CASE(r)                                                                                   \
  case r:                                                                                                 \
    if constexpr (Panels <= most_panels(r)) {                                                             \
      dot_i8<r, Panels, Columns>(d.w, d.panel_bytes, d.x, d.first, d.tiles, d.part, d.acc, d.acc_stride); \
    }                                                                                                     \
    return;
    PRECAST_CASE(1)
    PRECAST_CASE(2)
    PRECAST_CASE(3)
    PRECAST_CASE(4)
    PRECAST_CASE(5)
    PRECAST_CASE(6)
#undef PRECAST_CASE
  }
}

void dots(const Dots& d, int rows, int panels) {
  if (kUnrolledColumns != 0 && d.part.columns == kUnrolledColumns) {
    return panels == 2 ? dots<2, kUnrolledColumns>(d, rows) : dots<1, kUnrolledColumns>(d, rows);
  }
  panels == 2 ? dots<2, 0>(d, rows) : dots<1, 0>(d, rows);
}

// Parts of about kPartColumns columns and of whole groups, as even as these allow.
int part_columns(int k, int columns) {
  const int parts = k < kPartColumns ? 1 : (k + kPartColumns / 2) / kPartColumns, groups = k / columns;
  return (groups + parts - 1) / parts * columns;
}

}  // namespace

void linear_i8(const LinearWeights& w, const QuantizedTile* x, int rows, int tile_rows, int panel_begin, int panel_end,
               const LinearOut& out) {
  alignas(64) float acc[kBlockPanels * kCallTilesI8 * kTileRowsI8 * kPanel];  // [tile][panel][row][16]
  const int64_t acc_stride = int64_t{kBlockPanels} * tile_rows * kPanel;
  const int full = rows / tile_rows, rest = rows % tile_rows, tiles = full + (rest > 0 ? 1 : 0);
  const int columns = w.group == 0 ? w.k : w.group;
  const int at_once = tiles == 1 ? panels_of_single_tile(rows) : most_panels(tile_rows);
  const int part_k = tiles == 1 ? w.k : part_columns(w.k, columns);
  const int64_t panel_bytes = int64_t{kPanel} * w.k;
  for (int panel = panel_begin; panel < panel_end; panel += kBlockPanels) {
    const auto* weights = static_cast<const Weight8*>(w.w) + panel * panel_bytes;
    const int panels = panel_end - panel < kBlockPanels ? panel_end - panel : kBlockPanels;
    Part part{
        .begin = 0, .k = part_k, .group = 0, .columns = columns, .next = int64_t{kPanel} * part_k, .tiles = tiles};
    for (; part.begin < w.k; part.begin += part_k, part.group += part_k / columns) {
      const int64_t offset = int64_t{kPanel} * part.begin;
      if (w.k - part.begin <= part_k) {
        part.k = w.k - part.begin;
        part.next = kBlockPanels * panel_bytes - offset;
      }
      for (int p = 0, n; p < panels; p += n) {
        n = panels - p < at_once ? 1 : at_once;
        const Weight8* from = weights + p * panel_bytes + offset;
        float* sums = acc + int64_t{p} * tile_rows * kPanel;
        float* last_sums = acc + full * acc_stride + int64_t{p} * rest * kPanel;
        if (full > 0) dots({from, panel_bytes, x, 0, full, part, sums, acc_stride}, tile_rows, n);
        if (rest > 0) dots({from, panel_bytes, x + full, full, 1, part, last_sums, acc_stride}, rest, n);
      }
    }
    LinearOut tile_out = out;
    for (int t = 0; t < tiles; ++t) {
      finish(acc + t * acc_stride, t < full ? tile_rows : rest, panel, panels, w.scale, tile_out);
      tile_out.y += tile_rows * out.ldy;
      if (out.residual != nullptr) tile_out.residual += tile_rows * out.ldy;
    }
  }
}

}  // namespace precast::PRECAST_LEVEL
