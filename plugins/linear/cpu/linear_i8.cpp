// y = x·Wᵀ with int8 weights and int8 activations.
#include "plugins/linear/cpu/dot_i8.h"
#include "plugins/linear/cpu/epilogue.h"

namespace precast::PRECAST_LEVEL {

namespace {

// Panels that a call of dot_i8 takes at once: as many as the registers hold beside the rows. Few rows need several, to
// keep enough loads and dot products in flight.
constexpr int panels_at_once(int rows) { return rows <= kMaxRowsOf4 ? 4 : rows <= kMaxRowsOf2 ? 2 : 1; }

template <int Rows>
void rows_i8(const LinearWeights& w, const QuantizedTile& x, int panel_begin, int panel_end, const LinearOut& out) {
  constexpr int kPanels = panels_at_once(Rows);
  constexpr int kBlock = kPanels < 2 ? 2 : kPanels;  // the epilogue wants gate and up together
  const int columns = w.group == 0 ? w.k : w.group;
  const int64_t panel_bytes = int64_t{kPanel} * w.k;
  alignas(64) float acc[kBlock * Rows * kPanel];
  for (int panel = panel_begin; panel < panel_end; panel += kBlock) {
    const int panels = panel_end - panel < kBlock ? panel_end - panel : kBlock;
    int p = 0;
    for (; p + kPanels <= panels; p += kPanels) {
      dot_i8<Rows, kPanels>(static_cast<const Weight8*>(w.w) + (panel + p) * panel_bytes, panel_bytes, x, w.k, columns,
                            acc + p * Rows * kPanel);
    }
    for (; p < panels; ++p) {
      dot_i8<Rows, 1>(static_cast<const Weight8*>(w.w) + (panel + p) * panel_bytes, panel_bytes, x, w.k, columns,
                      acc + p * Rows * kPanel);
    }
    finish(acc, Rows, panel, panels, w.scale, out);
  }
}

}  // namespace

void linear_i8(const LinearWeights& w, const QuantizedTile& x, int rows, int panel_begin, int panel_end,
               const LinearOut& out) {
  switch (rows) {
#define PRECAST_CASE(r) \
  case r:               \
    return rows_i8<r>(w, x, panel_begin, panel_end, out);
    PRECAST_CASE(1)
    PRECAST_CASE(2)
    PRECAST_CASE(3)
    PRECAST_CASE(4)
    PRECAST_CASE(5)
    PRECAST_CASE(6)
#if defined(PRECAST_ISA_AVX512)
    PRECAST_CASE(7)
    PRECAST_CASE(8)
    PRECAST_CASE(9)
    PRECAST_CASE(10)
    PRECAST_CASE(11)
    PRECAST_CASE(12)
#endif
#undef PRECAST_CASE
  }
}

}  // namespace precast::PRECAST_LEVEL
