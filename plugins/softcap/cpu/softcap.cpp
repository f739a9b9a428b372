// cap · tanh(x / cap) of one row.
#include "plugins/cpu/simd.h"

namespace precast::PRECAST_LEVEL {

void softcap(const float* x, float cap, int n, float* y) {
  const F32 c = set1(cap);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, mul(c, tanh(div(load(x + i), c))));
  if (i < n) store_first(y + i, n - i, mul(c, tanh(div(load_first(x + i, n - i), c))));
}

}  // namespace precast::PRECAST_LEVEL
