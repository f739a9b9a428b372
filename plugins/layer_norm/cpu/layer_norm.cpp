// One row of layer normalization.
#include "plugins/cpu/simd.h"

namespace precast::PRECAST_LEVEL {

namespace {

// Σ of term(vector, columns in it) over n values: four vectors in turn, their sum as (0 + 1) + (2 + 3), then the lanes.
template <typename Term>
inline float sum_of(const float* x, int n, const Term& term) {
  F32 sum[4] = {zero(), zero(), zero(), zero()};
  int i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) sum[j] = term(sum[j], load(x + i + j * kLanes), kLanes);
  }
  for (int j = 0; i < n; ++j, i += kLanes) sum[j] = term(sum[j], load_first(x + i, n - i), n - i);
  return sum_lanes(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
}

}  // namespace

// The mean first and then the squares of what is left: a mean that is large beside the deviations costs no digits.
void layer_norm(const float* x, const float* gain, const float* bias, float eps, int n, float* y) {
  const float mean = sum_of(x, n, [](F32 sum, F32 v, int) { return add(sum, v); }) / static_cast<float>(n);
  const F32 center = set1(mean);
  const float squares = sum_of(x, n, [center](F32 sum, F32 v, int columns) {
    const F32 d = first_lanes(columns, sub(v, center), zero());
    return fma(d, d, sum);
  });
  const F32 factor = set1(1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps));
  for (int i = 0; i < n; i += kLanes) {
    const int left = n - i;
    F32 v = mul(sub(load_first(x + i, left), center), factor);
    if (gain != nullptr) v = mul(v, load_first(gain + i, left));
    if (bias != nullptr) v = add(v, load_first(bias + i, left));
    store_first(y + i, left, v);
  }
}

}  // namespace precast::PRECAST_LEVEL
