// x · factor of one row.
#include "plugins/cpu/simd.h"

namespace precast::PRECAST_LEVEL {

void scale(const float* x, float factor, int n, float* y) {
  const F32 f = set1(factor);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, mul(load(x + i), f));
  if (i < n) store_first(y + i, n - i, mul(load_first(x + i, n - i), f));
}

}  // namespace precast::PRECAST_LEVEL
