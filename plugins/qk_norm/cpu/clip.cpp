// Bounds the values of one row.
#include "plugins/cpu/simd.h"

namespace precast::PRECAST_LEVEL {

void clip(const float* x, float limit, int n, float* y) {
  const F32 most = set1(limit), least = set1(-limit);
  for (int i = 0; i < n; i += kLanes) {  // min and max give their second operand for NaN
    store_first(y + i, n - i, max(least, min(most, load_first(x + i, n - i))));
  }
}

}  // namespace precast::PRECAST_LEVEL
