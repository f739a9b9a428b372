// The register tiles of attention on AVX-512: out[r][c] += Σ_k a_r[k] · b[k][c] in pairs of k, two 16-bit numbers a
// lane. Both products of attention are this one: scores = q·K over pairs of head columns, and o = p·V over pairs of
// tokens.
//   bf16, fp8  vdpbf16ps on bf16, which holds every E4M3 number; sums are f32
//   int8       vpdpwssd on int16; sums are int32, and exact
#pragma once
#include "plugins/cpu/kv_element.h"

namespace precast::PRECAST_LEVEL {

inline constexpr int kTileLines = 12;                 // 24 sums, two vectors of b, and what it takes to load them
inline constexpr int kTileColumns = 2 * kLanes;       // of a tile
inline constexpr int kLinePairs = kContextSplit / 2;  // from line to line of a
static_assert(kTileColumns == kPageTokens);

using Pair = uint32_t;  // two 16-bit numbers, the one of lower k in the lower half
using Words = __m512i;  // 32 16-bit numbers

// Lines that read pages as they are. Unpacking E4M3 needs registers of its own.
template <typename T>
inline constexpr int kPageLines = kTileLines;
template <>
inline constexpr int kPageLines<fp8_t> = 5;

template <typename T>
inline constexpr bool kIntegerPairs = false;
template <>
inline constexpr bool kIntegerPairs<int8_t> = true;

// sum += w · x, two products a lane. Instructions of our own, because GCC 12 keeps the sums in memory otherwise.
template <bool Integer>
__attribute__((always_inline)) inline void dot_pairs(F32& sum, F32 w, F32 x) {
#if defined(PRECAST_EMULATE_ISA)
  sum = Integer ? emulated::dot_words(sum, w, x) : emulated::dot_bf16(sum, w, x);
#else
  if constexpr (Integer) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
  } else {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
  }
#endif
}

// The same for two vectors and a pair that both are multiplied by.
template <bool Integer>
__attribute__((always_inline)) inline void dot_pairs(F32& sum, F32& sum2, F32 w, F32 w2, const Pair* x) {
#if defined(PRECAST_EMULATE_ISA)
  const F32 both = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int32_t>(*x)));
  dot_pairs<Integer>(sum, w, both);
  dot_pairs<Integer>(sum2, w2, both);
#else
  F32 a;
  if constexpr (Integer) {
    asm("vpbroadcastd %[x], %[a]\n\tvpdpwssd %[a], %[w], %[sum]\n\tvpdpwssd %[a], %[w2], %[sum2]"
        : [sum] "+&v"(sum), [sum2] "+v"(sum2), [a] "=&v"(a)
        : [w] "v"(w), [w2] "v"(w2), [x] "m"(*x));
  } else {
    asm("vpbroadcastd %[x], %[a]\n\tvdpbf16ps %[a], %[w], %[sum]\n\tvdpbf16ps %[a], %[w2], %[sum2]"
        : [sum] "+&v"(sum), [sum2] "+v"(sum2), [a] "=&v"(a)
        : [w] "v"(w), [w2] "v"(w2), [x] "m"(*x));
  }
#endif
}

// 32 elements as the 16-bit numbers that are multiplied.
inline Words load_words(const bf16_t* p) { return _mm512_loadu_si512(p); }
inline Words load_words(const int8_t* p) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
// Exponents of E4M3 are 120 lower than those of bf16. Multiples of 2^-9 below the normal numbers come from a table.
inline Words load_words(const fp8_t* p) {
  alignas(64) static constexpr bf16_t kSmall[32] = {0x0000, 0x3B00, 0x3B80, 0x3BC0, 0x3C00, 0x3C20, 0x3C40, 0x3C60};
  const Words x = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  const Words magnitude = _mm512_and_si512(x, _mm512_set1_epi16(0x7F));
  const Words sign = _mm512_slli_epi16(_mm512_and_si512(x, _mm512_set1_epi16(0x80)), 8);
  const Words normal = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
  const __mmask32 small = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8));
  return _mm512_or_si512(sign, _mm512_mask_permutexvar_epi16(normal, small, magnitude, _mm512_loadu_si512(kSmall)));
}

// Columns 0 … 15 and 16 … 31 of two rows, column by column in pairs.
struct Interleave {
  Words low, high;

  Interleave() {
    alignas(64) static constexpr uint16_t kLow[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                      8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    low = _mm512_loadu_si512(kLow);
    high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  }
  __attribute__((always_inline)) void operator()(Words even, Words odd, F32& first, F32& second) const {
    first = _mm512_castsi512_ps(_mm512_permutex2var_epi16(even, low, odd));
    second = _mm512_castsi512_ps(_mm512_permutex2var_epi16(even, high, odd));
  }
};

// Into the L2 cache, which has more room for requests than L1 has: measured on Zen 4, 20 GB/s instead of 13 from pages
// in memory.
template <typename T>
__attribute__((always_inline)) inline void prefetch(const T* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
}

// Where a tile's b comes from: rows of a page, interleaved on the way, …
template <typename T>
struct PageRows {
  static constexpr bool kInteger = kIntegerPairs<T>;
  static constexpr int kMostLines = kPageLines<T>;
  const T* rows;  // [2 · pairs][ld]
  int64_t ld;
  const T*
      ahead;  // rows that are wanted next, fetched meanwhile: pages lie anywhere, and hardware does not foresee them
  Interleave interleave{};

  __attribute__((always_inline)) void load(int64_t k, F32& first, F32& second) const {
    const T* p = rows + 2 * k * ld;
    interleave(load_words(p), load_words(p + ld), first, second);
    prefetch(ahead + 2 * k * ld);
    prefetch(ahead + 2 * k * ld + ld);
  }
};

// … or pairs that were interleaved before, for many lines.
template <bool Integer>
struct PairRows {
  static constexpr bool kInteger = Integer;
  static constexpr int kMostLines = kTileLines;
  const Pair* rows;  // [pairs][ld]
  int64_t ld;

  __attribute__((always_inline)) void load(int64_t k, F32& first, F32& second) const {
    first = PRECAST_LEVEL::load(reinterpret_cast<const float*>(rows + k * ld));
    second = PRECAST_LEVEL::load(reinterpret_cast<const float*>(rows + k * ld + kLanes));
  }
};

// out [Lines][32 of ldo] += a [Lines][pairs of kLinePairs] · b in rising k. `fresh`: out is not read and counts as
// zero. Out of line, so that GCC 12 keeps the sums in registers.
template <typename Source, int Lines>
__attribute__((noinline)) void pair_tile(const Source& source, const Pair* a, int pairs, float* out, int64_t ldo,
                                         bool fresh) {
  F32 sum[Lines][2];
  if (fresh) {
#pragma GCC unroll 12
    for (int r = 0; r < Lines; ++r) sum[r][0] = sum[r][1] = zero();
  } else {
#pragma GCC unroll 12
    for (int r = 0; r < Lines; ++r) {
      sum[r][0] = load(out + r * ldo);
      sum[r][1] = load(out + r * ldo + kLanes);
    }
  }
  const Source b = source;
  for (int64_t k = 0; k < pairs; ++k, ++a) {
    F32 first, second;
    b.load(k, first, second);
#pragma GCC unroll 12
    for (int r = 0; r < Lines; ++r) {
      dot_pairs<Source::kInteger>(sum[r][0], sum[r][1], first, second, a + r * kLinePairs);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < Lines; ++r) {
    store(out + r * ldo, sum[r][0]);
    store(out + r * ldo + kLanes, sum[r][1]);
  }
}

template <typename Source>
void accumulate_pairs(const Source& source, const Pair* a, int lines, int pairs, float* out, int64_t ldo, bool fresh) {
  switch (lines) {
#define PRECAST_CASE(n)                                                                             \
  case n:                                                                                           \
    if constexpr (n <= Source::kMostLines) pair_tile<Source, n>(source, a, pairs, out, ldo, fresh); \
    return;
    PRECAST_CASE(1)
    PRECAST_CASE(2)
    PRECAST_CASE(3)
    PRECAST_CASE(4)
    PRECAST_CASE(5)
    PRECAST_CASE(6)
    PRECAST_CASE(7)
    PRECAST_CASE(8)
    PRECAST_CASE(9)
    PRECAST_CASE(10)
    PRECAST_CASE(11)
    PRECAST_CASE(12)
#undef PRECAST_CASE
  }
}

}  // namespace precast::PRECAST_LEVEL
