// Rotary position embedding of one token's heads, in place.
#include "plugins/cpu/simd.h"

namespace precast::PRECAST_LEVEL {

// (a, b) → (a·cos − b·sin, b·cos + a·sin) for a = x[i], b = x[i + rotary_dim/2]. Columns from rotary_dim on stay.
void rope(float* x, int heads, int head_size, int rotary_dim, const float* cos, const float* sin) {
  const int half = rotary_dim / 2;
  for (int h = 0; h < heads; ++h, x += head_size) {
    for (int i = 0; i < half; i += kLanes) {
      const int n = half - i;
      const F32 c = load_first(cos + i, n), s = load_first(sin + i, n);
      const F32 a = load_first(x + i, n), b = load_first(x + half + i, n);
      store_first(x + i, n, fma(a, c, sub(zero(), mul(b, s))));
      store_first(x + half + i, n, fma(b, c, mul(a, s)));
    }
  }
}

}  // namespace precast::PRECAST_LEVEL
