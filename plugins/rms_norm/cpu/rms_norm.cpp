// One row of RMS normalization.
#include "plugins/cpu/simd.h"

namespace precast::PRECAST_LEVEL {

// Order of the sum of squares: four vectors in turn, their sum as (0 + 1) + (2 + 3), then over the lanes.
void rms_norm(const float* x, const float* gain, float eps, int n, float* y) {
  F32 squares[4] = {zero(), zero(), zero(), zero()};
  int i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      const F32 v = load(x + i + j * kLanes);
      squares[j] = fma(v, v, squares[j]);
    }
  }
  for (int j = 0; i < n; ++j, i += kLanes) {
    const F32 v = load_first(x + i, n - i);
    squares[j] = fma(v, v, squares[j]);
  }
  const float sum = sum_lanes(add(add(squares[0], squares[1]), add(squares[2], squares[3])));
  const F32 factor = set1(1.0f / __builtin_sqrtf(sum / static_cast<float>(n) + eps));
  for (i = 0; i + kLanes <= n; i += kLanes) {
    const F32 v = mul(load(x + i), factor);
    store(y + i, gain == nullptr ? v : mul(v, load(gain + i)));
  }
  if (i < n) {
    const F32 v = mul(load_first(x + i, n - i), factor);
    store_first(y + i, n - i, gain == nullptr ? v : mul(v, load_first(gain + i, n - i)));
  }
}

}  // namespace precast::PRECAST_LEVEL
