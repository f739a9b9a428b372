// Vectors of floats for the level that this file is compiled for. Kernel sources include it, live in namespace
// precast::PRECAST_LEVEL, and are compiled once per level (plugins/CMakeLists.txt).
//
// Kernel sources use no inline functions of the standard library that other translation units use too: the linker keeps
// one copy of such a function, perhaps the one compiled for AVX-512, and older CPUs would run into it.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "plugins/cpu/kernels.h"

#if defined(PRECAST_ISA_AVX512)
#define PRECAST_LEVEL avx512
#elif defined(PRECAST_ISA_AVX2_VNNI)
#define PRECAST_LEVEL avx2_vnni
#elif defined(PRECAST_ISA_AVX2)
#define PRECAST_LEVEL avx2
#else
#error "define PRECAST_ISA_AVX2, PRECAST_ISA_AVX2_VNNI or PRECAST_ISA_AVX512"
#endif

namespace precast::PRECAST_LEVEL {

#if defined(PRECAST_ISA_AVX512)

inline constexpr int kLanes = 16;
using F32 = __m512;

inline F32 zero() { return _mm512_setzero_ps(); }
inline F32 set1(float x) { return _mm512_set1_ps(x); }
inline F32 load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F32 x) { _mm512_storeu_ps(p, x); }
inline F32 add(F32 a, F32 b) { return _mm512_add_ps(a, b); }
inline F32 sub(F32 a, F32 b) { return _mm512_sub_ps(a, b); }
inline F32 mul(F32 a, F32 b) { return _mm512_mul_ps(a, b); }
inline F32 div(F32 a, F32 b) { return _mm512_div_ps(a, b); }
inline F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }
inline F32 max(F32 a, F32 b) { return _mm512_max_ps(a, b); }
inline F32 min(F32 a, F32 b) { return _mm512_min_ps(a, b); }
inline F32 abs(F32 x) { return _mm512_abs_ps(x); }
inline F32 round_even(F32 x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// 2^n for integral n in [-126, 127]
inline F32 exp2_int(F32 n) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
// lanes i < n take a, the others b
inline F32 first_lanes(int n, F32 a, F32 b) {
  const __mmask16 m = n >= 16 ? 0xFFFF : n <= 0 ? 0 : static_cast<__mmask16>((1u << n) - 1);
  return _mm512_mask_blend_ps(m, b, a);
}
// the first n lanes of p, the others zero; reads nothing behind p + n
inline F32 load_first(const float* p, int n) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>(n >= 16 ? 0xFFFF : (1u << n) - 1), p);
}
inline void store_first(float* p, int n, F32 x) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>(n >= 16 ? 0xFFFF : (1u << n) - 1), x);
}
inline F32 load_bf16(const bf16_t* p) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}
inline F32 load_int8(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
// E4M3 without NaN: the bits of sign and magnitude at their places in a float, whose exponent is 120 too small.
inline F32 load_fp8(const uint8_t* p) {
  const __m512i x = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m512i bits = _mm512_and_si512(_mm512_slli_epi32(x, 20), _mm512_set1_epi32(static_cast<int>(0x87F00000u)));
  return mul(_mm512_castsi512_ps(bits), set1(0x1p120f));
}
// Sums fold the upper half onto the lower, down to one lane.
inline __m256 fold(F32 x) { return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)); }
inline __m256 fold_max(F32 x) { return _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)); }

#else

inline constexpr int kLanes = 8;
using F32 = __m256;

inline F32 zero() { return _mm256_setzero_ps(); }
inline F32 set1(float x) { return _mm256_set1_ps(x); }
inline F32 load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F32 x) { _mm256_storeu_ps(p, x); }
inline F32 add(F32 a, F32 b) { return _mm256_add_ps(a, b); }
inline F32 sub(F32 a, F32 b) { return _mm256_sub_ps(a, b); }
inline F32 mul(F32 a, F32 b) { return _mm256_mul_ps(a, b); }
inline F32 div(F32 a, F32 b) { return _mm256_div_ps(a, b); }
inline F32 fma(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }
inline F32 max(F32 a, F32 b) { return _mm256_max_ps(a, b); }
inline F32 min(F32 a, F32 b) { return _mm256_min_ps(a, b); }
inline F32 abs(F32 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
inline F32 round_even(F32 x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline F32 exp2_int(F32 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline __m256i lane_mask(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline F32 first_lanes(int n, F32 a, F32 b) { return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(lane_mask(n))); }
inline F32 load_first(const float* p, int n) { return _mm256_maskload_ps(p, lane_mask(n)); }
inline void store_first(float* p, int n, F32 x) { _mm256_maskstore_ps(p, lane_mask(n), x); }
inline F32 load_bf16(const bf16_t* p) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
inline F32 load_int8(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline F32 load_fp8(const uint8_t* p) {
  const __m256i x = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m256i bits = _mm256_and_si256(_mm256_slli_epi32(x, 20), _mm256_set1_epi32(static_cast<int>(0x87F00000u)));
  return mul(_mm256_castsi256_ps(bits), set1(0x1p120f));
}
inline __m256 fold(F32 x) { return x; }
inline __m256 fold_max(F32 x) { return x; }

#endif

// Most rows of one call of the linears (kernels.h); what the register tiles of plugins/linear/cpu are made for.
inline constexpr int kTileRowsI8 = 6, kTileRowsFloat = 48;

// How int8 weights are stored. vpdpbusd multiplies unsigned by signed bytes: weights are stored + 128 for it.
#if defined(PRECAST_ISA_AVX512) || defined(PRECAST_ISA_AVX2_VNNI)
#define PRECAST_HAS_VNNI 1
using Weight8 = uint8_t;
inline constexpr int kWeight8Zero = 128;
#else
using Weight8 = int8_t;
inline constexpr int kWeight8Zero = 0;
#endif

// Sum and maximum over the lanes, always in the same order.
inline float sum_lanes(F32 v) {
  const __m256 x = fold(v);
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
inline float max_lanes(F32 v) {
  const __m256 x = fold_max(v);
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

// exp(x) within 2 ulp for x ≤ 88; exactly 0 below −87.3 (so exp(−inf) = 0); NaN stays NaN (min and max give their
// second operand then). Cody-Waite reduction by ln 2 and the degree-6 Taylor-like minimax polynomial on [−ln2/2,
// ln2/2].
inline F32 exp(F32 x) {
  const F32 low = set1(-87.33f);
  const F32 clamped = min(set1(88.0f), max(low, x));
  const F32 n = round_even(mul(clamped, set1(1.44269504f)));
  F32 r = fma(n, set1(-0.693145752f), clamped);
  r = fma(n, set1(-1.42860677e-6f), r);
  F32 p = set1(1.98756915e-4f);
  p = fma(p, r, set1(1.39819995e-3f));
  p = fma(p, r, set1(8.33345186e-3f));
  p = fma(p, r, set1(4.16657962e-2f));
  p = fma(p, r, set1(1.66666657e-1f));
  p = fma(p, r, set1(0.5f));
  p = fma(p, mul(r, r), add(r, set1(1.0f)));
  const F32 y = mul(p, exp2_int(n));
#if defined(PRECAST_ISA_AVX512)
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, low, _CMP_NLT_UQ), y);
#else
  return _mm256_and_ps(_mm256_cmp_ps(x, low, _CMP_NLT_UQ), y);
#endif
}

// 0, 1, 2, … in the lanes
inline F32 iota() {
  alignas(64) static constexpr float kNumbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load(kNumbers);
}

// a where x < 0, otherwise b
inline F32 where_negative(F32 x, F32 a, F32 b) {
#if defined(PRECAST_ISA_AVX512)
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, zero(), _CMP_LT_OQ), b, a);
#else
  return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, zero(), _CMP_LT_OQ));
#endif
}

// tanh(x) within 3 ulp: x + x³ · p(x²) for |x| < 0.625 (p: a minimax fit of relative error 5e-9), otherwise
// 1 − 2 / (e^2|x| + 1) with the sign of x. NaN stays NaN, ±∞ gives ±1.
inline F32 tanh(F32 x) {
  const F32 y = mul(x, x), a = abs(x);
  F32 p = set1(-0.005704986515f);
  p = fma(p, y, set1(0.02063908683f));
  p = fma(p, y, set1(-0.05373971497f));
  p = fma(p, y, set1(0.133314422f));
  p = fma(p, y, set1(-0.3333328194f));
  const F32 small = fma(mul(p, y), x, x);
  const F32 large = sub(set1(1.0f), div(set1(2.0f), add(exp(add(a, a)), set1(1.0f))));
  return where_negative(sub(a, set1(0.625f)), small, where_negative(x, sub(zero(), large), large));
}

// Round to nearest even; NaN stays NaN.
inline bf16_t to_bf16(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<bf16_t>((bits >> 16) | 0x40u);
  return static_cast<bf16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}
inline float from_bf16(bf16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float y;
  __builtin_memcpy(&y, &bits, 4);
  return y;
}

}  // namespace precast::PRECAST_LEVEL
