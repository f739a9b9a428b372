// y = x·Wᵀ with bf16 or f32 weights.
#include "plugins/linear/cpu/epilogue.h"

namespace precast::PRECAST_LEVEL {

void linear_bf16(const LinearWeights& w, const float* x, int64_t ldx, int rows, int panel_begin, int panel_end,
                 const LinearOut& out) {
  float acc[2 * kTileRowsFloat * kPanel];
  for (int panel = panel_begin; panel < panel_end; panel += 2) {
    const int panels = panel_end - panel < 2 ? 1 : 2;
    for (int p = 0; p < panels; ++p) {
      for (int r = 0; r < rows; ++r) {
        for (int n = 0; n < kPanel; ++n) {
          float total = 0;
          for (int k = 0; k < w.k; ++k) {
            const bf16_t weight =
                static_cast<const bf16_t*>(w.w)[(int64_t{panel + p} * (w.k / 2) + k / 2) * 32 + n * 2 + k % 2];
            float v = x[r * ldx + k];
#if defined(PRECAST_ISA_AVX512)
            v = from_bf16(to_bf16(v));
#endif
            total = __builtin_fmaf(v, from_bf16(weight), total);
          }
          acc[(p * rows + r) * kPanel + n] = total;
        }
      }
    }
    finish(acc, rows, panel, panels, nullptr, out);
  }
}

void linear_f32(const LinearWeights& w, const float* x, int64_t ldx, int rows, int panel_begin, int panel_end,
                const LinearOut& out) {
  float acc[2 * kTileRowsFloat * kPanel];
  for (int panel = panel_begin; panel < panel_end; panel += 2) {
    const int panels = panel_end - panel < 2 ? 1 : 2;
    for (int p = 0; p < panels; ++p) {
      for (int r = 0; r < rows; ++r) {
        for (int n = 0; n < kPanel; ++n) {
          float total = 0;
          for (int k = 0; k < w.k; ++k) {
            const float weight = static_cast<const float*>(w.w)[(int64_t{panel + p} * w.k + k) * kPanel + n];
            total = __builtin_fmaf(x[r * ldx + k], weight, total);
          }
          acc[(p * rows + r) * kPanel + n] = total;
        }
      }
    }
    finish(acc, rows, panel, panels, nullptr, out);
  }
}

}  // namespace precast::PRECAST_LEVEL
