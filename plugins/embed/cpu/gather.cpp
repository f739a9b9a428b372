// One output channel of packed weights as floats: the embedding of a tied head.
#include "plugins/cpu/simd.h"

namespace precast::PRECAST_LEVEL {

void gather_i8(const LinearWeights& w, int channel, float* y) {
  const Weight8* p = static_cast<const Weight8*>(w.w) + int64_t{channel / kPanel} * kPanel * w.k + channel % kPanel * 4;
  const float scale = w.scale[channel];
  for (int k = 0; k < w.k; k += 4, p += 4 * kPanel) {
    for (int i = 0; i < 4; ++i) y[k + i] = static_cast<float>(p[i] - kWeight8Zero) * scale;
  }
}

void gather_bf16(const LinearWeights& w, int channel, float* y) {
  const bf16_t* p = static_cast<const bf16_t*>(w.w) + int64_t{channel / kPanel} * kPanel * w.k + channel % kPanel * 2;
  for (int k = 0; k < w.k; k += 2, p += 2 * kPanel) {
    y[k] = from_bf16(p[0]);
    y[k + 1] = from_bf16(p[1]);
  }
}

void gather_f32(const LinearWeights& w, int channel, float* y) {
  const float* p = static_cast<const float*>(w.w) + int64_t{channel / kPanel} * kPanel * w.k + channel % kPanel;
  for (int k = 0; k < w.k; ++k, p += kPanel) y[k] = *p;
}

}  // namespace precast::PRECAST_LEVEL
