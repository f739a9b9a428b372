// vpdpbusd multiplies unsigned by signed bytes: the weight is stored + 128, and each sum starts at −128·Σa, which the
// quantizer computed. The 32-bit sums wrap, so they are exact as long as the true sum fits.
#pragma once
#include "plugins/cpu/simd.h"

namespace precast::PRECAST_LEVEL {

// Most rows of 4 and of 2 panels at once: the registers hold the sums of all rows and panels, the weights and an
// activation.
#if defined(PRECAST_ISA_AVX512)
using I32 = __m512i;
inline constexpr int kRegisters = 32, kMaxRowsOf4 = 4, kMaxRowsOf2 = 12;

inline I32 set1(int32_t x) { return _mm512_set1_epi32(x); }
inline I32 load_weights(const Weight8* w) { return _mm512_loadu_si512(w); }
inline F32 to_float(I32 x) { return _mm512_cvtepi32_ps(x); }
#else
using I32 = __m256i;
inline constexpr int kRegisters = 16, kMaxRowsOf4 = 0, kMaxRowsOf2 = 2;

inline I32 set1(int32_t x) { return _mm256_set1_epi32(x); }
inline I32 load_weights(const Weight8* w) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)); }
inline F32 to_float(I32 x) { return _mm256_cvtepi32_ps(x); }
#endif

// How far ahead of its use a weight is fetched: the hardware's prefetcher stops at each 4-KiB page.
inline constexpr int kPrefetchBytes = 2048;

// sum += w · a, four products a lane. An instruction of our own: GCC 12 keeps the sums of the intrinsic in memory.
__attribute__((always_inline)) inline void dot4(I32& sum, I32 w, I32 a) {
#if defined(PRECAST_EMULATE_ISA)
  sum = emulated::dot_bytes(sum, w, a);
#elif defined(PRECAST_ISA_AVX512)
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(a));
#else
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(w), "x"(a));
#endif
}

// acc [Panels][Rows][16] = the dot products of tile rows 0 … Rows−1 with panels w, w + panel_bytes, … (before the
// weight's scale). Sums over `columns` of K are exact; their scaled values are added in rising K. Out of line: inlined
// beside the epilogue, GCC 12 keeps the sums in memory.
template <int Rows, int Panels>
__attribute__((noinline)) void dot_i8(const Weight8* w, int64_t panel_bytes, const QuantizedTile& x, int k, int columns,
                                      float* acc) {
  constexpr int kParts = kPanel / kLanes, kVectors = Panels * kParts;  // a vector holds a panel or half of one
  static_assert(Rows * kVectors + kVectors < kRegisters);
  for (int i = 0; i < Panels * Rows * kPanel; i += kLanes) store(acc + i, zero());
  const int8_t* q = x.q;
  const float* scale = x.scale;
  const int32_t* total = x.sum;
  for (int begin = 0; begin < k; begin += columns, scale += Rows, total += Rows) {
    I32 sum[kVectors][Rows];
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
      const I32 start = set1(static_cast<int32_t>(0u - 128u * static_cast<uint32_t>(total[r])));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[v][r] = start;
    }
    const int8_t* end = q + int64_t{columns} * Rows;
    for (; q < end; q += 4 * Rows, w += 4 * kPanel) {
      I32 weight[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const Weight8* from = w + v / kParts * panel_bytes + v % kParts * 4 * kLanes;
        weight[v] = load_weights(from);
        if (v % kParts == 0) _mm_prefetch(from + kPrefetchBytes, _MM_HINT_T0);
      }
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) {
        int32_t four;
        __builtin_memcpy(&four, q + 4 * r, 4);
        const I32 a = set1(four);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) dot4(sum[v][r], weight[v], a);
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) {
        float* y = acc + (v / kParts * Rows + r) * kPanel + v % kParts * kLanes;
        store(y, fma(set1(scale[r]), to_float(sum[v][r]), load(y)));
      }
    }
  }
}

}  // namespace precast::PRECAST_LEVEL
