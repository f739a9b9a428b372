// Joins the context splits of attention.
#include "plugins/cpu/simd.h"

namespace precast::PRECAST_LEVEL {

namespace {

// x · a + y · b over n floats, into x.
inline void blend(float* x, float a, const float* y, float b, int n) {
  const F32 va = set1(a), vb = set1(b);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, fma(load(y + i), vb, mul(load(x + i), va)));
  if (i < n) store_first(x + i, n - i, fma(load_first(y + i, n - i), vb, mul(load_first(x + i, n - i), va)));
}

inline float exp1(float x) {
  float lanes[kLanes];
  store(lanes, exp(set1(x)));
  return lanes[0];
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
    const float m = partial[0] > state[0] ? partial[0] : state[0];
    const float a = exp1(state[0] - m), b = exp1(partial[0] - m);
    state[0] = m;
    blend(state + 1, a, partial + 1, b, head_size + 1);
  }
}

void attention_finish(int head_size, const float* state, float* out) {
  const F32 sum = set1(state[1]);
  int i = 0;
  for (; i + kLanes <= head_size; i += kLanes) store(out + i, div(load(state + 2 + i), sum));
  if (i < head_size) store_first(out + i, head_size - i, div(load_first(state + 2 + i, head_size - i), sum));
}

}  // namespace precast::PRECAST_LEVEL
