// AVX2 has no dot product of signed bytes. vpmaddubsw multiplies unsigned by signed, so the weight's magnitude meets
// the activation with the weight's sign on it: |w| · (a · sign w). Both are at most 127, so the sum of two products (at
// most 32,258) does not saturate. The magnitude is taken once for all rows.
#pragma once
#include "plugins/cpu/simd.h"

namespace precast::avx2 {

using Weight8 = int8_t;

// Most rows of 4 and of 2 panels at once: 16 registers hold 2·rows·panels sums, a weight and its magnitude.
inline constexpr int kMaxRowsOf4 = 0, kMaxRowsOf2 = 1;

// How far ahead of its use a weight is fetched: the hardware's prefetcher stops at each 4-KiB page.
inline constexpr int kPrefetchBytes = 2048;

// sum += w · a in each lane: four weights (and their magnitudes) times the four activations at `a`. One piece of
// assembly, because GCC 12 loads the activations of all rows ahead and then spills the sums.
__attribute__((always_inline)) inline void dot4(__m256i& sum, __m256i w, __m256i magnitude, const int8_t* a,
                                                __m256i ones) {
  __m256i t;
  asm("vpbroadcastd %[a], %[t]\n\t"
      "vpsignb %[w], %[t], %[t]\n\t"
      "vpmaddubsw %[t], %[m], %[t]\n\t"
      "vpmaddwd %[ones], %[t], %[t]\n\t"
      "vpaddd %[t], %[sum], %[sum]"
      : [sum] "+x"(sum), [t] "=&x"(t)
      : [w] "x"(w), [m] "x"(magnitude), [ones] "x"(ones), [a] "m"(*reinterpret_cast<const int8_t(*)[4]>(a)));
}

// acc [Panels][Rows][16] = the dot products of tile rows 0 … Rows−1 with panels w, w + panel_bytes, … (before the
// weight's scale). Sums over `columns` of K are exact; their scaled values are added in rising K.
template <int Rows, int Panels>
inline void dot_i8(const Weight8* w, int64_t panel_bytes, const QuantizedTile& x, int k, int columns, float* acc) {
  const __m256i ones = _mm256_set1_epi16(1);
  for (int i = 0; i < Panels * Rows * kPanel; i += kLanes) store(acc + i, zero());
  const int8_t* q = x.q;
  const float* scale = x.scale;
  for (int begin = 0; begin < k; begin += columns, scale += Rows) {
    __m256i sum[2 * Panels][Rows];
    for (int half = 0; half < 2 * Panels; ++half) {
      for (int r = 0; r < Rows; ++r) sum[half][r] = _mm256_setzero_si256();
    }
    const int8_t* end = q + int64_t{columns} * Rows;
    for (; q < end; q += 4 * Rows, w += 4 * kPanel) {
#pragma GCC unroll 4
      for (int half = 0; half < 2 * Panels; ++half) {
        const int8_t* v = w + half / 2 * panel_bytes + half % 2 * 32;
        if (half % 2 == 0) _mm_prefetch(v + kPrefetchBytes, _MM_HINT_T0);
        const __m256i weight = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(v));
        const __m256i magnitude = _mm256_abs_epi8(weight);
#pragma GCC unroll 6
        for (int r = 0; r < Rows; ++r) {
          dot4(sum[half][r], weight, magnitude, q + 4 * r, ones);
        }
      }
    }
    for (int p = 0; p < Panels; ++p) {
      for (int r = 0; r < Rows; ++r) {
        const F32 s = set1(scale[r]);
        float* y = acc + (p * Rows + r) * kPanel;
        store(y, fma(s, _mm256_cvtepi32_ps(sum[2 * p][r]), load(y)));
        store(y + kLanes, fma(s, _mm256_cvtepi32_ps(sum[2 * p + 1][r]), load(y + kLanes)));
      }
    }
  }
}

}  // namespace precast::avx2
