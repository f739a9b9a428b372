// The inner loop of the bf16 and f32 linears: a register tile of `Rows` rows times `Panels` panels over a part of K.
#pragma once
#include "plugins/cpu/simd.h"

namespace precast::PRECAST_LEVEL {

inline constexpr int kVectors = kPanel / kLanes;  // vectors of a panel

// Rows of a register tile, and the panels that fit beside them: registers hold the sums of rows · panels, the weights
// and an activation. One row needs several panels to hide the latency of its sums.
#if defined(PRECAST_ISA_AVX512)
inline constexpr int kFloatRows = 12;
constexpr int float_panels(int rows) { return rows <= 2 ? 4 : 2; }
#else
inline constexpr int kFloatRows = 6;
constexpr int float_panels(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
#endif

// How far ahead of its use a weight is fetched: the hardware's prefetcher stops at each 4-KiB page.
inline constexpr int kFloatPrefetchBytes = 2048;

#if defined(PRECAST_ISA_AVX512) && defined(PRECAST_EMULATE_ISA)
inline void fma_into(F32& sum, F32 w, F32 x) { sum = fma(w, x, sum); }
inline void fma_into_pair(F32& sum, F32& sum2, F32 w, F32 w2, const float* x) {
  sum = fma(w, set1(*x), sum);
  sum2 = fma(w2, set1(*x), sum2);
}
inline void dot_bf16_into(F32& sum, F32 w, F32 x) { sum = emulated::dot_bf16(sum, w, x); }
#else
// sum += w · x. Instructions of our own, because GCC 12 keeps the sums in memory otherwise; in pairs with the broadcast
// of x, because GCC broadcasts the activations of all rows ahead and then spills the sums.
__attribute__((always_inline)) inline void fma_into(F32& sum, F32 w, F32 x) {
  asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
}
__attribute__((always_inline)) inline void fma_into_pair(F32& sum, F32& sum2, F32 w, F32 w2, const float* x) {
  F32 a;
  asm("vbroadcastss %[x], %[a]\n\tvfmadd231ps %[a], %[w], %[sum]\n\tvfmadd231ps %[a], %[w2], %[sum2]"
      : [sum] "+&v"(sum), [sum2] "+v"(sum2), [a] "=&v"(a)
      : [w] "v"(w), [w2] "v"(w2), [x] "m"(*x));
}
#if defined(PRECAST_ISA_AVX512)
// The same for lanes of two bf16 each.
__attribute__((always_inline)) inline void dot_bf16_into(F32& sum, F32 w, F32 x) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
}
#endif
#endif

// A weight format. A panel holds [K/kStep][16][kStep] weights; activations are packed to [K/kStep][kPasses][rows] of 4
// bytes, row by row (`pack_row`); a step of K is, for each pass, one multiplication of 4-byte lanes.
struct Float32 {
  using Weight = float;
  static constexpr int kStep = 1, kPasses = 1;

  static void pack_row(const float* x, int columns, int rows, float* packed) {
    for (int c = 0; c < columns; ++c, packed += rows) *packed = x[c];
  }
  static F32 weights(const Weight* w, [[maybe_unused]] int pass) { return load(w); }
  static void multiply_add(F32& sum, F32 w, F32 x) { fma_into(sum, w, x); }
  static void multiply_add_pair(F32& sum, F32& sum2, F32 w, F32 w2, const float* x) {
    fma_into_pair(sum, sum2, w, w2, x);
  }
};

#if defined(PRECAST_ISA_AVX512)
// Eight floats as four pairs of bf16, rounded as to_bf16 does.
inline __m128i bf16_pairs(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i upper = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  // Each lane has its bf16 in the lower half: pack the halves of both 128-bit sides, and put them side by side.
  const __m256i sides = _mm256_permute4x64_epi64(_mm256_packus_epi32(upper, upper), _MM_SHUFFLE(3, 1, 2, 0));
  return _mm256_castsi256_si128(sides);
}
#endif

// A lane holds the weights of two neighbouring columns.
struct Bf16 {
  using Weight = bf16_t;
  static constexpr int kStep = 2;

#if defined(PRECAST_ISA_AVX512)
  // vdpbf16ps adds the products of both columns, with activations that are bf16 too.
  static constexpr int kPasses = 1;

  static void pack_row(const float* x, int columns, int rows, float* packed) {
    int c = 0;
    for (; c + 8 <= columns; c += 8) {
      alignas(16) float pairs[4];
      _mm_store_si128(reinterpret_cast<__m128i*>(pairs), bf16_pairs(_mm256_loadu_ps(x + c)));
      for (const float pair : pairs) {
        *packed = pair;
        packed += rows;
      }
    }
    for (; c < columns; c += 2, packed += rows) {
      const bf16_t two[2] = {to_bf16(x[c]), to_bf16(x[c + 1])};
      __builtin_memcpy(packed, two, 4);
    }
  }
  static F32 weights(const Weight* w, [[maybe_unused]] int pass) { return load(reinterpret_cast<const float*>(w)); }
  static void multiply_add(F32& sum, F32 w, F32 x) { dot_bf16_into(sum, w, x); }
  static void multiply_add_pair(F32& sum, F32& sum2, F32 w, F32 w2, const float* x) {
    const F32 a = set1(*x);
    multiply_add(sum, w, a);
    multiply_add(sum2, w2, a);
  }
#else
  // A bf16 is the upper half of a float: the even column's is shifted up, the odd column's is masked.
  static constexpr int kPasses = 2;

  static void pack_row(const float* x, int columns, int rows, float* packed) {
    Float32::pack_row(x, columns, rows, packed);
  }
  static F32 weights(const Weight* w, int pass) {
    const __m256i two = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
    const __m256i one = pass == 0 ? _mm256_slli_epi32(two, 16) : _mm256_and_si256(two, _mm256_set1_epi32(-65536));
    return _mm256_castsi256_ps(one);
  }
  static void multiply_add(F32& sum, F32 w, F32 x) { fma_into(sum, w, x); }
  static void multiply_add_pair(F32& sum, F32& sum2, F32 w, F32 w2, const float* x) {
    fma_into_pair(sum, sum2, w, w2, x);
  }
#endif
};

// acc [Panels][Rows][16] += the packed activations · panels w, w + panel_stride, … over `columns` of K, in rising K.
// Rows r of panel p stand at acc + p · acc_stride + 16 · r.
// Out of line: inlined beside the epilogue, GCC 12 keeps the sums in memory.
template <typename Format, int Rows, int Panels>
__attribute__((noinline)) void dot_float(const typename Format::Weight* w, int64_t panel_stride, const float* x,
                                         int columns, float* acc, int64_t acc_stride) {
  F32 sum[Panels * kVectors][Rows];
#pragma GCC unroll 8
  for (int v = 0; v < Panels * kVectors; ++v) {
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r)
      sum[v][r] = load(acc + v / kVectors * acc_stride + r * kPanel + v % kVectors * kLanes);
  }
  for (int c = 0; c < columns; c += Format::kStep, w += kPanel * Format::kStep) {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      const char* ahead = reinterpret_cast<const char*>(w + p * panel_stride) + kFloatPrefetchBytes;
      _mm_prefetch(ahead, _MM_HINT_T0);
    }
#pragma GCC unroll 2
    for (int pass = 0; pass < Format::kPasses; ++pass, x += Rows) {
      const auto weights = [&](int v) __attribute__((always_inline)) {
        return Format::weights(w + v / kVectors * panel_stride + v % kVectors * kLanes * Format::kStep, pass);
      };
      if constexpr (Rows <= 2) {  // the activations stay, the weights come and go
        F32 a[Rows];
        for (int r = 0; r < Rows; ++r) a[r] = set1(x[r]);
#pragma GCC unroll 8
        for (int v = 0; v < Panels * kVectors; ++v) {
          const F32 weight = weights(v);
          for (int r = 0; r < Rows; ++r) Format::multiply_add(sum[v][r], weight, a[r]);
        }
      } else if constexpr (Panels * kVectors == 2) {
        const F32 first = weights(0), second = weights(1);
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r) Format::multiply_add_pair(sum[0][r], sum[1][r], first, second, x + r);
      } else {
        static_assert(Panels * kVectors == 1);
        const F32 weight = weights(0);
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r) Format::multiply_add(sum[0][r], weight, set1(x[r]));
      }
      asm("" : "+r"(w));  // the next pass loads its weights again: no register is free to keep them
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < Panels * kVectors; ++v) {
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r)
      store(acc + v / kVectors * acc_stride + r * kPanel + v % kVectors * kLanes, sum[v][r]);
  }
}

}  // namespace precast::PRECAST_LEVEL
