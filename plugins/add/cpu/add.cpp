// x + y of one row.
#include "plugins/cpu/simd.h"

namespace precast::PRECAST_LEVEL {

void add(const float* x, const float* y, int n, float* z) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(z + i, add(load(x + i), load(y + i)));
  if (i < n) store_first(z + i, n - i, add(load_first(x + i, n - i), load_first(y + i, n - i)));
}

}  // namespace precast::PRECAST_LEVEL
