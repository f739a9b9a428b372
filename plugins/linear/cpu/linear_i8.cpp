// y = x·Wᵀ with int8 weights and int8 activations.
#include "plugins/linear/cpu/epilogue.h"

namespace precast::PRECAST_LEVEL {

void linear_i8(const LinearWeights& w, const QuantizedTile& x, int rows, int panel_begin, int panel_end,
               const LinearOut& out) {
  const int columns = w.group == 0 ? w.k : w.group;
  float acc[2 * kTileRowsI8 * kPanel];
  for (int panel = panel_begin; panel < panel_end; panel += 2) {
    const int panels = panel_end - panel < 2 ? 1 : 2;
    for (int p = 0; p < panels; ++p) {
      for (int r = 0; r < rows; ++r) {
        for (int n = 0; n < kPanel; ++n) {
          float total = 0;
          for (int g = 0; g * columns < w.k; ++g) {
            int32_t sum = 0;
            for (int k = g * columns; k < (g + 1) * columns; ++k) {
              const int64_t at = (int64_t{panel + p} * (w.k / 4) + k / 4) * 64 + n * 4 + k % 4;
#if defined(PRECAST_ISA_AVX512)
              const int weight = static_cast<const uint8_t*>(w.w)[at] - 128;
#else
              const int weight = static_cast<const int8_t*>(w.w)[at];
#endif
              sum += weight * x.q[(int64_t{k / 4} * rows + r) * 4 + k % 4];
            }
            total = __builtin_fmaf(x.scale[int64_t{g} * rows + r], static_cast<float>(sum), total);
          }
          acc[(p * rows + r) * kPanel + n] = total;
        }
      }
    }
    finish(acc, rows, panel, panels, w.scale, out);
  }
}

}  // namespace precast::PRECAST_LEVEL
