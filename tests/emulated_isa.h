// The instructions of the levels above avx2 that the kernels use, computed with AVX2, so that the sources of those
// levels can be executed and tested on a CPU without them. CMake's PRECAST_EMULATE_ISA includes this file before every
// source of these levels.
//
// What it does not show: the encoding and speed of the real instructions, the compiler's code for the real level, and
// the last bit of vdpbf16ps, whose rounding is the CPU's own.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace precast::emulated {

struct Halves {
  __m256 low, high;
};
struct IntHalves {
  __m256i low, high;
};

template <typename To, typename From>
To bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}
inline Halves halves(const __m512& x) { return bits<Halves>(x); }
inline IntHalves halves(const __m512i& x) { return bits<IntHalves>(x); }
inline __m512 whole(__m256 low, __m256 high) { return bits<__m512>(Halves{low, high}); }
inline __m512i whole(__m256i low, __m256i high) { return bits<__m512i>(IntHalves{low, high}); }

inline __m512 fma(const __m512& a, const __m512& b, const __m512& c) {
  const Halves x = halves(a), y = halves(b), z = halves(c);
  return whole(_mm256_fmadd_ps(x.low, y.low, z.low), _mm256_fmadd_ps(x.high, y.high, z.high));
}
inline __m512 max(const __m512& a, const __m512& b) {
  const Halves x = halves(a), y = halves(b);
  return whole(_mm256_max_ps(x.low, y.low), _mm256_max_ps(x.high, y.high));
}
inline __m512 min(const __m512& a, const __m512& b) {
  const Halves x = halves(a), y = halves(b);
  return whole(_mm256_min_ps(x.low, y.low), _mm256_min_ps(x.high, y.high));
}
inline __m512 abs(const __m512& a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const Halves x = halves(a);
  return whole(_mm256_andnot_ps(sign, x.low), _mm256_andnot_ps(sign, x.high));
}
template <int Rounding>
__m512 round(const __m512& a) {
  const Halves x = halves(a);
  return whole(_mm256_round_ps(x.low, Rounding), _mm256_round_ps(x.high, Rounding));
}
inline __m512i to_int(const __m512& a) {
  const Halves x = halves(a);
  return whole(_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high));
}
inline __m512 to_float(const __m512i& a) {
  const IntHalves x = halves(a);
  return whole(_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high));
}
inline __m512i add(const __m512i& a, const __m512i& b) {
  const IntHalves x = halves(a), y = halves(b);
  return whole(_mm256_add_epi32(x.low, y.low), _mm256_add_epi32(x.high, y.high));
}
inline __m512i shift_left(const __m512i& a, int count) {
  const IntHalves x = halves(a);
  return whole(_mm256_slli_epi32(x.low, count), _mm256_slli_epi32(x.high, count));
}
inline __m512i widen(__m256i words) {
  return whole(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(words)),
               _mm256_cvtepu16_epi32(_mm256_extracti128_si256(words, 1)));
}
inline __m512i widen_signed(__m128i bytes) {
  return whole(_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes)));
}
inline __m512i both(const __m512i& a, const __m512i& b) {
  const IntHalves x = halves(a), y = halves(b);
  return whole(_mm256_and_si256(x.low, y.low), _mm256_and_si256(x.high, y.high));
}
template <int Comparison>
__mmask16 compare(const __m512& a, const __m512& b) {
  const Halves x = halves(a), y = halves(b);
  const int low = _mm256_movemask_ps(_mm256_cmp_ps(x.low, y.low, Comparison));
  const int high = _mm256_movemask_ps(_mm256_cmp_ps(x.high, y.high, Comparison));
  return static_cast<__mmask16>(low | high << 8);
}

struct Lanes {
  float f[16];
};
inline __m512 blend(__mmask16 m, const __m512& otherwise, const __m512& chosen) {
  Lanes a = bits<Lanes>(otherwise);
  const Lanes b = bits<Lanes>(chosen);
  for (int i = 0; i < 16; ++i) {
    if (m >> i & 1) a.f[i] = b.f[i];
  }
  return bits<__m512>(a);
}
// Touches the chosen lanes alone, as the masked instructions do.
inline __m512 load(__mmask16 m, const float* p) {
  Lanes a = {};
  for (int i = 0; i < 16; ++i) {
    if (m >> i & 1) a.f[i] = p[i];
  }
  return bits<__m512>(a);
}
inline void store(float* p, __mmask16 m, const __m512& x) {
  const Lanes a = bits<Lanes>(x);
  for (int i = 0; i < 16; ++i) {
    if (m >> i & 1) p[i] = a.f[i];
  }
}

// vpdpbusd, of __m256i or __m512i: each lane adds four products of an unsigned byte of w and a signed byte of a, and
// wraps.
template <typename Vector>
Vector dot_bytes(const Vector& sum, const Vector& w, const Vector& a) {
  constexpr int kBytes = sizeof(Vector);
  struct {
    uint32_t lane[kBytes / 4];
  } s;
  struct {
    uint8_t byte[kBytes];
  } u;
  struct {
    int8_t byte[kBytes];
  } v;
  __builtin_memcpy(&s, &sum, kBytes);
  __builtin_memcpy(&u, &w, kBytes);
  __builtin_memcpy(&v, &a, kBytes);
  for (int i = 0; i < kBytes; ++i) s.lane[i / 4] += static_cast<uint32_t>(u.byte[i] * v.byte[i]);
  return bits<Vector>(s);
}

// vdpbf16ps: each lane adds the products of two bf16, the upper one first; denormals count as zero.
inline __m512 dot_bf16(const __m512& sum, const __m512& w, const __m512& x) {
  struct {
    uint32_t lane[16];
  } a, b;
  Lanes s = bits<Lanes>(sum);
  __builtin_memcpy(&a, &w, 64);
  __builtin_memcpy(&b, &x, 64);
  const auto number = [](uint32_t upper) {
    return (upper & 0x7F800000u) == 0 ? bits<float>(upper & 0x80000000u) : bits<float>(upper);
  };
  for (int i = 0; i < 16; ++i) {
    s.f[i] = __builtin_fmaf(number(a.lane[i] & 0xFFFF0000u), number(b.lane[i] & 0xFFFF0000u), s.f[i]);
    s.f[i] = __builtin_fmaf(number(a.lane[i] << 16), number(b.lane[i] << 16), s.f[i]);
  }
  return bits<__m512>(s);
}

// vpdpwssd: each lane adds two products of signed 16-bit numbers, and wraps.
inline __m512 dot_words(const __m512& sum, const __m512& w, const __m512& x) {
  const IntHalves s = halves(bits<__m512i>(sum)), a = halves(bits<__m512i>(w)), b = halves(bits<__m512i>(x));
  return bits<__m512>(whole(_mm256_add_epi32(s.low, _mm256_madd_epi16(a.low, b.low)),
                            _mm256_add_epi32(s.high, _mm256_madd_epi16(a.high, b.high))));
}

struct Words {
  uint16_t word[32];
};
// word(i) for each i.
template <typename F>
__m512i words(F word) {
  Words y;
  for (int i = 0; i < 32; ++i) y.word[i] = static_cast<uint16_t>(word(i));
  return bits<__m512i>(y);
}
inline __m512i permute_words(const __m512i& a, const __m512i& index, const __m512i& b) {
  const Words x = bits<Words>(a), y = bits<Words>(b), at = bits<Words>(index);
  return words([&](int i) { return (at.word[i] & 32 ? y : x).word[at.word[i] & 31]; });
}
inline __m512i permute_words(const __m512i& otherwise, __mmask32 m, const __m512i& index, const __m512i& table) {
  const Words x = bits<Words>(table), y = bits<Words>(otherwise), at = bits<Words>(index);
  return words([&](int i) { return m >> i & 1 ? x.word[at.word[i] & 31] : y.word[i]; });
}
inline __m512i add_words(const __m512i& a, const __m512i& b) {
  const Words x = bits<Words>(a), y = bits<Words>(b);
  return words([&](int i) { return x.word[i] + y.word[i]; });
}
inline __m512i shift_words_left(const __m512i& a, int count) {
  const Words x = bits<Words>(a);
  return words([&](int i) { return x.word[i] << count; });
}
inline __mmask32 words_below(const __m512i& a, const __m512i& b) {
  const Words x = bits<Words>(a), y = bits<Words>(b);
  __mmask32 m = 0;
  for (int i = 0; i < 32; ++i) m |= static_cast<__mmask32>(x.word[i] < y.word[i]) << i;
  return m;
}
inline __m512i either(const __m512i& a, const __m512i& b) {
  const IntHalves x = halves(a), y = halves(b);
  return whole(_mm256_or_si256(x.low, y.low), _mm256_or_si256(x.high, y.high));
}
inline __m512i max_unsigned(const __m512i& a, const __m512i& b) {
  const IntHalves x = halves(a), y = halves(b);
  return whole(_mm256_max_epu32(x.low, y.low), _mm256_max_epu32(x.high, y.high));
}
// The lower 16 bits of each lane.
inline __m256i narrow(const __m512i& a) {
  const Words x = bits<Words>(a);
  struct {
    uint16_t word[16];
  } y;
  for (int i = 0; i < 16; ++i) y.word[i] = x.word[2 * i];
  return bits<__m256i>(y);
}
// vscalefps for integral n: x · 2^n.
inline __m512 scale(const __m512& x, const __m512& n) {
  Lanes y = bits<Lanes>(x);
  const Lanes power = bits<Lanes>(n);
  for (int i = 0; i < 16; ++i) y.f[i] = __builtin_scalbnf(y.f[i], static_cast<int>(power.f[i]));
  return bits<__m512>(y);
}
// vcvtneps2bf16: to nearest even; denormals become zero.
inline __m256i to_bf16(const __m512& x) {
  struct {
    uint32_t lane[16];
  } a;
  struct {
    uint16_t word[16];
  } y;
  __builtin_memcpy(&a, &x, 64);
  for (int i = 0; i < 16; ++i) {
    const uint32_t b = a.lane[i], magnitude = b & 0x7FFFFFFFu;
    const uint32_t rounded = magnitude > 0x7F800000u   ? b | 0x400000u
                             : magnitude < 0x00800000u ? b & 0x80000000u
                                                       : b + 0x7FFFu + (b >> 16 & 1u);
    y.word[i] = static_cast<uint16_t>(rounded >> 16);
  }
  return bits<__m256i>(y);
}

}  // namespace precast::emulated

#define _mm512_setzero_ps() (__m512{})
#define _mm512_set1_ps(x) (precast::emulated::whole(_mm256_set1_ps(x), _mm256_set1_ps(x)))
#define _mm512_set1_epi32(x) (precast::emulated::whole(_mm256_set1_epi32(x), _mm256_set1_epi32(x)))
#define _mm512_loadu_ps(p) (precast::emulated::load(0xFFFF, p))
#define _mm512_storeu_ps(p, x) (precast::emulated::store(p, 0xFFFF, x))
#define _mm512_maskz_loadu_ps(m, p) (precast::emulated::load(m, p))
#define _mm512_mask_storeu_ps(p, m, x) (precast::emulated::store(p, m, x))
#define _mm512_loadu_si512(p) (precast::emulated::bits<__m512i>(*reinterpret_cast<const char(*)[64]>(p)))
#define _mm512_add_ps(a, b) ((a) + (b))
#define _mm512_sub_ps(a, b) ((a) - (b))
#define _mm512_mul_ps(a, b) ((a) * (b))
#define _mm512_div_ps(a, b) ((a) / (b))
#define _mm512_fmadd_ps(a, b, c) (precast::emulated::fma(a, b, c))
#define _mm512_max_ps(a, b) (precast::emulated::max(a, b))
#define _mm512_min_ps(a, b) (precast::emulated::min(a, b))
#define _mm512_abs_ps(a) (precast::emulated::abs(a))
#define _mm512_roundscale_ps(a, rounding) (precast::emulated::round<rounding>(a))
#define _mm512_cvtps_epi32(a) (precast::emulated::to_int(a))
#define _mm512_cvtepi32_ps(a) (precast::emulated::to_float(a))
#define _mm512_cvtepu16_epi32(a) (precast::emulated::widen(a))
#define _mm512_cvtepi8_epi32(a) (precast::emulated::widen_signed(a))
#define _mm512_and_si512(a, b) (precast::emulated::both(a, b))
#define _mm512_add_epi32(a, b) (precast::emulated::add(a, b))
#define _mm512_slli_epi32(a, count) (precast::emulated::shift_left(a, count))
#define _mm512_castsi512_ps(a) (precast::emulated::bits<__m512>(a))
#define _mm512_castps_si512(a) (precast::emulated::bits<__m512i>(a))
#define _mm512_castps512_ps256(a) (precast::emulated::halves(a).low)
#define _mm512_extractf32x8_ps(a, upper) \
  ((upper) ? precast::emulated::halves(a).high : precast::emulated::halves(a).low)
#define _mm512_cmp_ps_mask(a, b, comparison) (precast::emulated::compare<comparison>(a, b))
#define _mm512_mask_blend_ps(m, a, b) (precast::emulated::blend(m, a, b))
#define _mm512_maskz_mov_ps(m, a) (precast::emulated::blend(m, __m512{}, a))
#define _mm512_setzero_si512() (__m512i{})
#define _mm512_set1_epi16(x) (precast::emulated::whole(_mm256_set1_epi16(x), _mm256_set1_epi16(x)))
#define _mm512_storeu_si512(p, x) (__builtin_memcpy(p, &(x), 64))
#define _mm512_cvtepi8_epi16(a)                                              \
  (precast::emulated::whole(_mm256_cvtepi8_epi16(_mm256_castsi256_si128(a)), \
                            _mm256_cvtepi8_epi16(_mm256_extracti128_si256(a, 1))))
#define _mm512_cvtepu8_epi16(a)                                              \
  (precast::emulated::whole(_mm256_cvtepu8_epi16(_mm256_castsi256_si128(a)), \
                            _mm256_cvtepu8_epi16(_mm256_extracti128_si256(a, 1))))
#define _mm512_cvtepi32_epi16(a) (precast::emulated::narrow(a))
#define _mm512_permutex2var_epi16(a, index, b) (precast::emulated::permute_words(a, index, b))
#define _mm512_mask_permutexvar_epi16(a, m, index, table) (precast::emulated::permute_words(a, m, index, table))
#define _mm512_cmplt_epu16_mask(a, b) (precast::emulated::words_below(a, b))
#define _mm512_add_epi16(a, b) (precast::emulated::add_words(a, b))
#define _mm512_slli_epi16(a, count) (precast::emulated::shift_words_left(a, count))
#define _mm512_or_si512(a, b) (precast::emulated::either(a, b))
#define _mm512_max_epu32(a, b) (precast::emulated::max_unsigned(a, b))
#define _mm512_scalef_ps(a, n) (precast::emulated::scale(a, n))
