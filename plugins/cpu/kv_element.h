// What a KV page holds, by dtype: how an element is read into vector lanes and written.
#pragma once
#include "plugins/cpu/simd.h"

namespace precast::PRECAST_LEVEL {

// E4M3 (OCP 8-bit floating point specification, 2023): bias 7, no infinities, NaN 0x7F, largest 448.
struct fp8_t {
  uint8_t bits;
};

inline constexpr float kLargestFp8 = 448.0f;

// Round to nearest even; |x| ≤ 448.
inline fp8_t to_fp8(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  const uint32_t sign = bits >> 24 & 0x80u;
  bits &= 0x7FFFFFFFu;
  uint32_t code;
  if (bits < 0x3C800000u) {  // below 2^-6 elements are multiples of 2^-9: the sum's last bit is worth one of them
    float magnitude;
    __builtin_memcpy(&magnitude, &bits, 4);
    const float sum = magnitude + 0x1.8p14f;
    __builtin_memcpy(&code, &sum, 4);
    code &= 0xFu;
  } else {
    code = ((bits + 0x7FFFFu + (bits >> 20 & 1u)) >> 20) - (120u << 3);
  }
  return {static_cast<uint8_t>(sign | code)};
}

inline F32 load_any(const float* p) { return load(p); }
inline F32 load_any(const bf16_t* p) { return load_bf16(p); }
inline F32 load_any(const int8_t* p) { return load_int8(p); }
inline F32 load_any(const fp8_t* p) { return load_fp8(&p->bits); }

inline F32 load_any_first(const float* p, int n) { return load_first(p, n); }
template <typename T>
F32 load_any_first(const T* p, int n) {
  T lanes[kLanes] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load_any(lanes);
}

template <typename T>
inline constexpr bool kScaled = false;
template <>
inline constexpr bool kScaled<int8_t> = true;
template <>
inline constexpr bool kScaled<fp8_t> = true;

// Calls f with a null pointer of the dtype's element type.
template <typename F>
void with_element(KvDType dtype, F f) {
  switch (dtype) {
    case KvDType::f32:
      return f(static_cast<float*>(nullptr));
    case KvDType::bf16:
      return f(static_cast<bf16_t*>(nullptr));
    case KvDType::int8:
      return f(static_cast<int8_t*>(nullptr));
    case KvDType::fp8:
      return f(static_cast<fp8_t*>(nullptr));
  }
}

}  // namespace precast::PRECAST_LEVEL
