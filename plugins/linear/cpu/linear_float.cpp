// y = x·Wᵀ with bf16 or f32 weights.
//
// K is cut into parts whose activations are packed once for all panels of a block: [steps of K][rows], so that the
// inner loop walks over one stream whatever the stride of x. Sums wait in memory between the parts; that changes no
// bit.
#include "plugins/linear/cpu/dot_float.h"
#include "plugins/linear/cpu/epilogue.h"

namespace precast::PRECAST_LEVEL {

namespace {

// Panels that share the packed activations. Packing costs about as much as one panel does.
constexpr int kBlockPanels = 32;
// Activations packed at once (48 KiB): they stay in the L2 cache beside the part's weights.
constexpr int kPackedFloats = 12288;

// A register tile's rows `Rows` of acc [panels][rows][16] for all panels of a block.
template <typename Format, int Rows>
void tile_dots(const typename Format::Weight* w, int64_t panel_stride, const float* x, int columns, int panels,
               float* acc, int64_t acc_stride) {
  constexpr int kAtOnce = float_panels(Rows);
  int p = 0;
  for (; p + kAtOnce <= panels; p += kAtOnce) {
    dot_float<Format, Rows, kAtOnce>(w + p * panel_stride, panel_stride, x, columns, acc + p * acc_stride, acc_stride);
  }
  for (; p < panels; ++p) {
    dot_float<Format, Rows, 1>(w + p * panel_stride, panel_stride, x, columns, acc + p * acc_stride, acc_stride);
  }
}

template <typename Format>
void tile_dots(int rows, const typename Format::Weight* w, int64_t panel_stride, const float* x, int columns,
               int panels, float* acc, int64_t acc_stride) {
  switch (rows) {
#define PRECAST_CASE(r) \
  case r:               \
    return tile_dots<Format, r>(w, panel_stride, x, columns, panels, acc, acc_stride);
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

template <typename Format>
void linear_float(const LinearWeights& w, const float* x, int64_t ldx, int rows, int panel_begin, int panel_end,
                  const LinearOut& out) {
  alignas(64) float packed[kPackedFloats];
  alignas(64) float acc[kBlockPanels * kTileRowsFloat * kPanel];
  const auto* weights = static_cast<const typename Format::Weight*>(w.w);
  const int64_t panel_stride = int64_t{kPanel} * w.k, acc_stride = int64_t{kPanel} * rows;
  const int tiles = (rows + kFloatRows - 1) / kFloatRows;
  const int part = kPackedFloats / rows / 2 * 2;
  for (int panel = panel_begin; panel < panel_end; panel += kBlockPanels) {
    const int panels = panel_end - panel < kBlockPanels ? panel_end - panel : kBlockPanels;
    for (int64_t i = 0; i < panels * acc_stride; i += kLanes) store(acc + i, zero());
    for (int begin = 0; begin < w.k; begin += part) {
      const int columns = w.k - begin < part ? w.k - begin : part;
      const auto* part_weights = weights + panel * panel_stride + int64_t{kPanel} * begin;
      // As few register tiles as hold the rows, of nearly the same size.
      for (int t = 0; t < tiles; ++t) {
        const int first = rows * t / tiles, count = rows * (t + 1) / tiles - first;
        for (int r = 0; r < count; ++r) {
          Format::pack_row(x + (first + r) * ldx + begin, columns, count, packed + first * columns + r);
        }
      }
      for (int t = 0; t < tiles; ++t) {
        const int first = rows * t / tiles, count = rows * (t + 1) / tiles - first;
        tile_dots<Format>(count, part_weights, panel_stride, packed + first * columns, columns, panels,
                          acc + first * kPanel, acc_stride);
      }
    }
    finish(acc, rows, panel, panels, nullptr, out);
  }
}

}  // namespace

void linear_bf16(const LinearWeights& w, const float* x, int64_t ldx, int rows, int panel_begin, int panel_end,
                 const LinearOut& out) {
  linear_float<Bf16>(w, x, ldx, rows, panel_begin, panel_end, out);
}

void linear_f32(const LinearWeights& w, const float* x, int64_t ldx, int rows, int panel_begin, int panel_end,
                const LinearOut& out) {
  linear_float<Float32>(w, x, ldx, rows, panel_begin, panel_end, out);
}

}  // namespace precast::PRECAST_LEVEL
