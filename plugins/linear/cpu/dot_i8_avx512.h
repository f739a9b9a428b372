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

// sum += w · a, four products a lane. GCC 12 keeps the sums of the intrinsic in memory; with an instruction of our own
// on sums that each have a name, it keeps them in registers.
__attribute__((always_inline)) inline void dot4(__m512i& sum, __m512i w, __m512i a) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(a));
}

#define PRECAST_EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

// acc [Panels][Rows][16] = the dot products of tile rows 0 … Rows−1 with panels w, w + panel_bytes, … (before the
// weight's scale). Sums over `columns` of K are exact; their scaled values are added in rising K.
template <int Rows, int Panels>
inline void dot_i8(const Weight8* w, int64_t panel_bytes, const QuantizedTile& x, int k, int columns, float* acc) {
  static_assert(Rows <= 12 && (Panels == 1 || Panels == 2 || Panels == 4) && Rows * Panels <= 24);
  for (int i = 0; i < Panels * Rows * kPanel; i += kLanes) store(acc + i, zero());
  const int8_t* q = x.q;
  const float* scale = x.scale;
  const int32_t* total = x.sum;
  for (int begin = 0; begin < k; begin += columns, scale += Rows, total += Rows) {
#define PRECAST_START(r)                                                             \
  const __m512i start##r = _mm512_set1_epi32(r < Rows ? -128 * total[r % Rows] : 0); \
  __m512i a##r = start##r, b##r = start##r, c##r = start##r, d##r = start##r;
    PRECAST_EACH_ROW(PRECAST_START)
#undef PRECAST_START
    const int8_t* end = q + columns * Rows;
    for (; q < end; q += 4 * Rows, w += 4 * kPanel) {
      const Weight8* w_b = w + (Panels > 1 ? panel_bytes : 0);
      const Weight8* w_c = w + (Panels > 2 ? 2 * panel_bytes : 0);
      const Weight8* w_d = w + (Panels > 2 ? 3 * panel_bytes : 0);
      const __m512i wa = _mm512_loadu_si512(w), wb = _mm512_loadu_si512(w_b);
      const __m512i wc = _mm512_loadu_si512(w_c), wd = _mm512_loadu_si512(w_d);
      _mm_prefetch(w + kPrefetchBytes, _MM_HINT_T0);
      if constexpr (Panels > 1) _mm_prefetch(w_b + kPrefetchBytes, _MM_HINT_T0);
      if constexpr (Panels > 2) {
        _mm_prefetch(w_c + kPrefetchBytes, _MM_HINT_T0);
        _mm_prefetch(w_d + kPrefetchBytes, _MM_HINT_T0);
      }
#define PRECAST_DOT(r)                              \
  if constexpr (r < Rows) {                         \
    int32_t four;                                   \
    __builtin_memcpy(&four, q + 4 * r, 4);          \
    const __m512i x##r = _mm512_set1_epi32(four);   \
    dot4(a##r, wa, x##r);                           \
    if constexpr (Panels > 1) dot4(b##r, wb, x##r); \
    if constexpr (Panels > 2) dot4(c##r, wc, x##r); \
    if constexpr (Panels > 2) dot4(d##r, wd, x##r); \
  }
      PRECAST_EACH_ROW(PRECAST_DOT)
#undef PRECAST_DOT
    }
#define PRECAST_ADD(p, sum, r)                                          \
  if constexpr (r < Rows && p < Panels) {                               \
    float* y = acc + (p * Rows + r) * kPanel;                           \
    store(y, fma(set1(scale[r]), _mm512_cvtepi32_ps(sum##r), load(y))); \
  }
#define PRECAST_ADD_ROW(r) PRECAST_ADD(0, a, r) PRECAST_ADD(1, b, r) PRECAST_ADD(2, c, r) PRECAST_ADD(3, d, r)
    PRECAST_EACH_ROW(PRECAST_ADD_ROW)
#undef PRECAST_ADD_ROW
#undef PRECAST_ADD
  }
}

#undef PRECAST_EACH_ROW

}  // namespace precast::avx512
