// Joins the context splits of attention.
#include "plugins/cpu/simd.h"

namespace precast::PRECAST_LEVEL {

namespace {

// x · a + y · b over n floats, into x.
inline void blend(float* x, F32 a, const float* y, F32 b, int n) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, fma(load(y + i), b, mul(load(x + i), a)));
  if (i < n) store_first(x + i, n - i, fma(load_first(y + i, n - i), b, mul(load_first(x + i, n - i), a)));
}

}  // namespace

// Empty is l = 0: a state that saw something has l ≥ 1, or NaN, which must not get lost.
void attention_merge(int head_size, int count, float* state, const float* partial) {
  const int64_t stride = attention_partial_floats(head_size);
  for (int i = 0; i < count; ++i, state += stride, partial += stride) {
    if (partial[1] == 0.0f) continue;
    if (state[1] == 0.0f) {
      for (int64_t j = 0; j < stride; ++j) state[j] = partial[j];
      continue;
    }
    const float difference = partial[0] - state[0];  // the larger one's factor is exp(0) = 1
    const F32 one = set1(1.0f), factor = exp(set1(difference > 0 ? -difference : difference));
    if (difference > 0) {
      state[0] = partial[0];
      blend(state + 1, factor, partial + 1, one, head_size + 1);
    } else {
      blend(state + 1, one, partial + 1, factor, head_size + 1);
    }
  }
}

void attention_finish(int head_size, const float* state, float* out) {
  const F32 sum = set1(state[1]);
  int i = 0;
  for (; i + kLanes <= head_size; i += kLanes) store(out + i, div(load(state + 2 + i), sum));
  if (i < head_size) store_first(out + i, head_size - i, div(load_first(state + 2 + i, head_size - i), sum));
}

}  // namespace precast::PRECAST_LEVEL
