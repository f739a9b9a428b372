// What a mixture of experts needs around its linears: who gets a row, and the sum of what they make of it.
#include "plugins/cpu/activation.h"

namespace precast::PRECAST_LEVEL {

namespace {

constexpr float kNothing = -__builtin_inff();

// The largest logit that comes behind (`above`, `after`) in the order of falling logits and, among equal ones, rising
// ids. A NaN counts as −∞. Returns −1 when none is left.
int next_best(const float* logits, int experts, float above, int after) {
  int best = -1;
  float largest = kNothing;
  for (int e = 0; e < experts; ++e) {
    const float l = logits[e] == logits[e] ? logits[e] : kNothing;
    const bool left = l < above || (l == above && e > after);
    if (left && (best < 0 || l > largest)) {
      best = e;
      largest = l;
    }
  }
  return best;
}

}  // namespace

// Order: the sum of exp(logit − max) is taken over vectors in rising id and then over the lanes; the sum of the chosen
// over rising id.
void moe_route(const float* logits, int experts, int top_k, bool normalize, int32_t* ids, float* weights) {
  int last = -1;
  float above = __builtin_inff();
  float largest = kNothing;
  for (int i = 0; i < top_k; ++i) {
    const int e = next_best(logits, experts, above, last);
    above = logits[e] == logits[e] ? logits[e] : kNothing;
    last = e;
    if (i == 0) largest = above;
    int at = i;  // into its place by id
    for (; at > 0 && ids[at - 1] > e; --at) ids[at] = ids[at - 1];
    ids[at] = e;
  }
  const F32 m = set1(largest);
  F32 sum = zero();
  for (int e = 0; e < experts; e += kLanes) {
    const int left = experts - e;
    sum = add(sum, first_lanes(left, exp(sub(load_first(logits + e, left), m)), zero()));
  }
  const float all = sum_lanes(sum);
  float chosen = 0;
  for (int i = 0; i < top_k; ++i) {
    float lanes[kLanes];
    store(lanes, exp(sub(set1(logits[ids[i]]), m)));
    weights[i] = lanes[0] / all;
    chosen += weights[i];
  }
  for (int i = 0; normalize && i < top_k; ++i) weights[i] /= chosen;
}

void sigmoid(const float* x, int n, float* y) {
  for (int i = 0; i < n; i += kLanes) {
    store_first(y + i, n - i, times_sigmoid(set1(1.0f), load_first(x + i, n - i)));
  }
}

void weighted_sum(const float* const* x, const float* weights, int count, int n, float* y) {
  for (int i = 0; i < n; i += kLanes) {
    F32 sum = zero();
    for (int j = 0; j < count; ++j) sum = fma(set1(weights[j]), load_first(x[j] + i, n - i), sum);
    store_first(y + i, n - i, sum);
  }
}

}  // namespace precast::PRECAST_LEVEL
