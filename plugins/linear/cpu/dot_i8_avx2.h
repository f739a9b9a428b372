// AVX2 has no dot product of signed bytes. vpmaddubsw multiplies unsigned by signed, so the weight's magnitude meets
// the activation with the weight's sign on it: |w| · (a · sign w). Both are at most 127, so the sum of two products (at
// most 32,258) does not saturate. The magnitude is taken once for all rows.
#pragma once
#include "plugins/cpu/simd.h"

namespace precast::avx2 {

// Panels at once: one row is bound by memory and takes the weights as one stream (two panels at once are two, which on
// Zen 4 reach 0.55 of its speed with the short panels of SmolLM2 and 0.85 with those of a 1-B model), more rows are
// bound by the multiplier and take half a panel at a time.
constexpr int most_panels(int) { return 1; }
constexpr int panels_of_single_tile(int) { return 1; }

// The multiplier sets the pace, not where the weights come from: K is not cut.
inline constexpr int kPartColumns = 1 << 29;
inline constexpr int kUnrolledColumns = 0;

// How far ahead of its use a weight is fetched: the hardware's prefetcher stops at each 4-KiB page.
inline constexpr int64_t kAheadBytes = 4096;

alignas(32) inline constexpr int16_t kOnes[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

// sum += w · a in each lane: four weights (and their magnitudes) times the four activations at `a`. One piece of
// assembly, because GCC 12 loads the activations of all rows ahead and then spills the sums.
//
// On Zen 1 one of four pipes runs both multiplications and sets the pace, 4 cycles. To add the pairs with shifts on
// other pipes instead, in any share of the steps, is no faster: the more additions then compete for that pipe too.
__attribute__((always_inline)) inline void dot4(__m256i& sum, const Weight8* w, __m256i magnitude, const int8_t* a) {
  __m256i t;
  asm("vpbroadcastd %[a], %[t]\n\t"
      "vpsignb %[w], %[t], %[t]\n\t"
      "vpmaddubsw %[t], %[m], %[t]\n\t"
      "vpmaddwd %[ones], %[t], %[t]\n\t"
      "vpaddd %[t], %[sum], %[sum]"
      : [sum] "+x"(sum), [t] "=&x"(t)
      : [w] "m"(*reinterpret_cast<const Weight8(*)[32]>(w)), [m] "x"(magnitude), [ones] "m"(kOnes),
        [a] "m"(*reinterpret_cast<const int8_t(*)[4]>(a)));
}

inline __m256i magnitude_of(const Weight8* w) {
  return _mm256_abs_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)));
}

// One row; acc holds zeros.
inline void dot_i8_row(const Weight8* w, const QuantizedTile& x, int k, int columns, float* acc) {
  const int8_t* q = x.q;
  const float* scale = x.scale;
  for (int begin = 0; begin < k; begin += columns, ++scale) {
    __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    const int8_t* end = q + columns;
    for (; q < end; q += 4, w += 4 * kPanel) {
      _mm_prefetch(w + kAheadBytes, _MM_HINT_T0);
      dot4(sum[0], w, magnitude_of(w), q);
      dot4(sum[1], w + 32, magnitude_of(w + 32), q);
    }
    for (int half = 0; half < 2; ++half) {
      float* y = acc + half * kLanes;
      store(y, fma(set1(*scale), _mm256_cvtepi32_ps(sum[half]), load(y)));
    }
  }
}

// Several rows, half a panel at a time; acc holds zeros. The sums of a group wait in registers and are scaled
// among the products of the next half or group: the multiplier would stand still otherwise (groups of 32 on Zen 1: 32
// GOPS, now 36 of the 38 that one group of all K reaches).
template <int Rows>
inline void dot_i8_rows(const Weight8* w, const QuantizedTile& x, int k, int columns, float* acc) {
  constexpr int kSteps = 8;  // of K, unrolled; after each, a waiting row is scaled
  static_assert(Rows <= kSteps);
  const int8_t* q = x.q;
  const float* scale = x.scale;
  __m256i waiting[Rows];  // zeros at first: they add nothing
  for (int r = 0; r < Rows; ++r) waiting[r] = _mm256_setzero_si256();
  const float* waiting_scale = scale;
  float* waiting_acc = acc;
  const auto finish = [&](int r) __attribute__((always_inline)) {
    float* y = waiting_acc + r * kPanel;
    store(y, fma(set1(waiting_scale[r]), _mm256_cvtepi32_ps(waiting[r]), load(y)));
  };
  for (int begin = 0; begin < k; begin += columns, scale += Rows, q += int64_t{columns} * Rows) {
#pragma GCC unroll 1
    for (int half = 0; half < 2; ++half) {
      const Weight8* v = w + int64_t{begin} * kPanel + half * 32;
      const int8_t* a = q;
      __m256i sum[Rows];
      for (int r = 0; r < Rows; ++r) sum[r] = _mm256_setzero_si256();
      const auto step = [&]() __attribute__((always_inline)) {
        _mm_prefetch(v + kAheadBytes, _MM_HINT_T0);
        const __m256i magnitude = magnitude_of(v);
#pragma GCC unroll 6
        for (int r = 0; r < Rows; ++r) dot4(sum[r], v, magnitude, a + 4 * r);
        v += 4 * kPanel;
        a += 4 * Rows;
      };
      int c = 0;
      if (columns >= 4 * kSteps) {
#pragma GCC unroll 8
        for (; c < 4 * kSteps; c += 4) {
          step();
          if (c / 4 < Rows) finish(c / 4);
        }
      } else {
#pragma GCC unroll 6
        for (int r = 0; r < Rows; ++r) finish(r);
      }
      for (; c < columns; c += 4) step();
      for (int r = 0; r < Rows; ++r) waiting[r] = sum[r];
      waiting_scale = scale;
      waiting_acc = acc + half * kLanes;
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) finish(r);
}

// As in dot_i8_vnni.h. The one part is all of K.
template <int Rows, int Panels, int Columns>
__attribute__((noinline)) void dot_i8(const Weight8* w, int64_t, const QuantizedTile* x, int, int tiles,
                                      const Part& part, float* acc, int64_t acc_stride) {
  static_assert(Panels == 1);
  for (int t = 0; t < tiles; ++t, acc += acc_stride) {
    for (int i = 0; i < Rows * kPanel; i += kLanes) store(acc + i, zero());
    if constexpr (Rows == 1) {
      dot_i8_row(w, x[t], part.k, part.columns, acc);
    } else {
      dot_i8_rows<Rows>(w, x[t], part.k, part.columns, acc);
    }
  }
}

}  // namespace precast::avx2
