// vpdpbusd multiplies unsigned by signed bytes: the weight is stored + 128, and each sum starts at −128·Σa, which the
// quantizer computed. The 32-bit sums wrap, so they are exact as long as the true sum fits.
#pragma once
#include "plugins/cpu/simd.h"

namespace precast::avx512 {

using Weight8 = uint8_t;

// Most rows of 4 and of 2 panels at once: 32 registers hold rows·panels sums, the weights and an activation.
inline constexpr int kMaxRowsOf4 = 4, kMaxRowsOf2 = 12;

// How far ahead of its use a weight is fetched: the hardware's prefetcher stops at each 4-KiB page.
inline constexpr int kPrefetchBytes = 2048;

// sum += w · a, four products a lane. An instruction of our own: GCC 12 keeps the sums of the intrinsic in memory.
__attribute__((always_inline)) inline void dot4(__m512i& sum, __m512i w, __m512i a) {
#if defined(PRECAST_EMULATE_AVX512)
  sum = emulated::dot_bytes(sum, w, a);
#else
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(a));
#endif
}

// acc [Panels][Rows][16] = the dot products of tile rows 0 … Rows−1 with panels w, w + panel_bytes, … (before the
// weight's scale). Sums over `columns` of K are exact; their scaled values are added in rising K. Out of line: inlined
// beside the epilogue, GCC 12 keeps the sums in memory.
template <int Rows, int Panels>
__attribute__((noinline)) void dot_i8(const Weight8* w, int64_t panel_bytes, const QuantizedTile& x, int k, int columns,
                                      float* acc) {
  static_assert(Rows * Panels + Panels < 32);
  for (int i = 0; i < Panels * Rows * kPanel; i += kLanes) store(acc + i, zero());
  const int8_t* q = x.q;
  const float* scale = x.scale;
  const int32_t* total = x.sum;
  for (int begin = 0; begin < k; begin += columns, scale += Rows, total += Rows) {
    __m512i sum[Panels][Rows];
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
      const __m512i start = _mm512_set1_epi32(static_cast<int32_t>(0u - 128u * static_cast<uint32_t>(total[r])));
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sum[p][r] = start;
    }
    const int8_t* end = q + int64_t{columns} * Rows;
    for (; q < end; q += 4 * Rows, w += 4 * kPanel) {
      __m512i weight[Panels];
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        weight[p] = _mm512_loadu_si512(w + p * panel_bytes);
        _mm_prefetch(w + p * panel_bytes + kPrefetchBytes, _MM_HINT_T0);
      }
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) {
        int32_t four;
        __builtin_memcpy(&four, q + 4 * r, 4);
        const __m512i a = _mm512_set1_epi32(four);
#pragma GCC unroll 4
        for (int p = 0; p < Panels; ++p) dot4(sum[p][r], weight[p], a);
      }
    }
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) {
        float* y = acc + (p * Rows + r) * kPanel;
        store(y, fma(set1(scale[r]), _mm512_cvtepi32_ps(sum[p][r]), load(y)));
      }
    }
  }
}

}  // namespace precast::avx512
