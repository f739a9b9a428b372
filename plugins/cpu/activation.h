// The activation functions of feed-forward layers, on vectors. NaN stays NaN; −∞ gives NaN where the function is x
// times a factor that vanishes there (0 · ∞), as the frameworks have it.
#pragma once
#include "plugins/cpu/simd.h"

namespace precast::PRECAST_LEVEL {

// x · sigmoid(z) = x · (z < 0 ? e : 1) / (1 + e) with e = exp(−|z|), which cannot overflow.
inline F32 times_sigmoid(F32 x, F32 z) {
  const F32 e = exp(sub(zero(), abs(z)));
  return div(mul(x, where_negative(z, e, set1(1.0f))), add(set1(1.0f), e));
}

// silu(−1e38) is −0.
inline F32 silu(F32 x) { return times_sigmoid(x, x); }

// x · sigmoid(1.702 · x)
inline F32 gelu_quick(F32 x) { return times_sigmoid(x, mul(x, set1(1.702f))); }

// 0.5 · x · (1 + tanh(u)) with u = √(2/π) · (x + 0.044715 · x³), which is x · sigmoid(2u): no sum cancels for x < 0.
inline F32 gelu_tanh(F32 x) {
  const F32 cube = mul(mul(x, x), mul(x, set1(0.07135481627f)));  // 2 · √(2/π) · 0.044715 · x³
  return times_sigmoid(x, fma(x, set1(1.595769122f), cube));
}

// x · Φ(x), Φ the normal distribution's function: erfc(|x| / √2) / 2 for x < 0, one minus that otherwise, so that no
// sum cancels. erfc(z) = exp(−z²) · t · p(t) with t = 1 / (1 + 0.4 · z) and p of degree 9, a minimax fit of relative
// error 7e-9; −z² is taken with its rounding error, which exp would magnify.
inline F32 gelu(F32 x) {
  const F32 a = min(set1(14.0f), abs(x));  // Φ(−14) is less than the smallest float; NaN passes through min
  const F32 t = div(set1(1.0f), fma(a, set1(0.2828427125f), set1(1.0f)));
  F32 p = set1(-0.01529760487f);
  p = fma(p, t, set1(0.1017372656f));
  p = fma(p, t, set1(-0.2558608203f));
  p = fma(p, t, set1(0.2823772619f));
  p = fma(p, t, set1(-0.1494337588f));
  p = fma(p, t, set1(0.1399542596f));
  p = fma(p, t, set1(0.0634727355f));
  p = fma(p, t, set1(0.1077553004f));
  p = fma(p, t, set1(0.1124400371f));
  p = fma(p, t, set1(0.1128553272f));
  const F32 square = mul(a, a), error = fma(a, a, sub(zero(), square));
  F32 e = exp(mul(square, set1(-0.5f)));
  e = fma(e, mul(error, set1(-0.5f)), e);
  const F32 tail = mul(mul(p, t), e);
  return mul(x, where_negative(x, tail, sub(set1(1.0f), tail)));
}

inline F32 relu(F32 x) { return max(zero(), x); }  // max gives its second operand for NaN
inline F32 relu2(F32 x) {
  const F32 y = relu(x);
  return mul(y, y);
}

template <Activation kind>
inline F32 activate(F32 x) {
  if constexpr (kind == Activation::silu) return silu(x);
  if constexpr (kind == Activation::gelu) return gelu(x);
  if constexpr (kind == Activation::gelu_tanh) return gelu_tanh(x);
  if constexpr (kind == Activation::gelu_quick) return gelu_quick(x);
  if constexpr (kind == Activation::relu) return relu(x);
  if constexpr (kind == Activation::relu2) return relu2(x);
}

// Calls fn.operator()<kind>(), so that the loops inside have no branches.
template <typename Fn>
inline void with_activation(Activation kind, const Fn& fn) {
  switch (kind) {
    case Activation::silu:
      return fn.template operator()<Activation::silu>();
    case Activation::gelu:
      return fn.template operator()<Activation::gelu>();
    case Activation::gelu_tanh:
      return fn.template operator()<Activation::gelu_tanh>();
    case Activation::gelu_quick:
      return fn.template operator()<Activation::gelu_quick>();
    case Activation::relu:
      return fn.template operator()<Activation::relu>();
    case Activation::relu2:
      return fn.template operator()<Activation::relu2>();
  }
}

}  // namespace precast::PRECAST_LEVEL
