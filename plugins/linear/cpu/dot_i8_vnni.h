// vpdpbusd multiplies unsigned by signed bytes: the weight is stored + 128, and each sum starts at −128·Σa, which the
// quantizer computed. The 32-bit sums wrap, so they are exact as long as the true sum fits.
#pragma once
#include "plugins/cpu/simd.h"

namespace precast::PRECAST_LEVEL {

#if defined(PRECAST_ISA_AVX512)
using I32 = __m512i;
inline constexpr int kRegisters = 32;
inline constexpr int kUnrolledColumns = 32;  // of a group: the loop over them is unrolled

inline I32 set1(int32_t x) { return _mm512_set1_epi32(x); }
inline I32 load_weights(const Weight8* w) { return _mm512_loadu_si512(w); }
inline F32 to_float(I32 x) { return _mm512_cvtepi32_ps(x); }
#else
using I32 = __m256i;
inline constexpr int kRegisters = 16;
inline constexpr int kUnrolledColumns = 0;  // GCC 12 would spill

inline I32 set1(int32_t x) { return _mm256_set1_epi32(x); }
inline I32 load_weights(const Weight8* w) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)); }
inline F32 to_float(I32 x) { return _mm256_cvtepi32_ps(x); }
#endif

inline constexpr int kVectorsOfPanel = kPanel / kLanes;

// Whether the registers hold the sums of all rows and vectors of weights, as integers of a group and as floats, beside
// the weights and an activation.
constexpr bool sums_fit(int rows, int vectors) { return 2 * rows * vectors + vectors + 1 <= kRegisters; }

// Most panels at once: two share the loads of the activations.
constexpr int most_panels(int rows) { return sums_fit(rows, 2 * kVectorsOfPanel) ? 2 : 1; }

// Panels at once of a single tile. Few rows wait for memory, and one panel after the other is one stream: two streams
// reach three quarters of the bandwidth that one does (Zen 4).
constexpr int panels_of_single_tile(int rows) { return rows > 4 ? most_panels(rows) : 1; }

// K of 256 columns is multiplied with all tiles of a call before the next: two panels of it (8 KiB) stay in the L1
// cache.
inline constexpr int kPartColumns = 256;

// How far ahead of its use a weight is fetched when memory sets the pace. One or two rows read a stream so evenly that
// the hardware does better alone (Zen 4: 8 % more for one row, 7 % for two; four rows lose 3 % without).
inline constexpr int64_t kAheadBytes = 4096;
inline constexpr int kMaxStreamedRows = 2;

// Cache lines of each of two panels that are fetched while a tile goes through kRun columns of K, `offset` bytes behind
// the weights of the first run, then on from there.
struct Fetch {
  int64_t offset;
  int lines;
};
inline constexpr int kRun = 32, kRunLines = 8;  // a line holds four columns of a panel

// With several tiles, memory has until the last of them to bring the next part. They share the asking for it: a core
// has few requests under way at a time.
inline Fetch fetch_of(const Part& part, int tile) {
  if (part.tiles == 1) return {kAheadBytes, kRunLines};
  const int share = (kRunLines + part.tiles - 1) / part.tiles, left = kRunLines - tile * share;
  const int runs = (part.k + kRun - 1) / kRun;
  return {part.next + int64_t{64} * runs * tile * share, left < 0 ? 0 : left < share ? left : share};
}

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

// acc [tiles][acc_stride], each [Panels][Rows][16], += the dot products of rows 0 … Rows−1 of the tiles x (the call's
// from `first` on) with panels w, w + panel_bytes, … over the part's columns (before the weight's scale); in the first
// part acc is not read and counts as zero. Sums over a group's columns (`Columns`, unless that is 0) are exact; their
// scaled values are added in rising K. Out of line: inlined beside the epilogue, GCC 12 keeps the sums in memory.
template <int Rows, int Panels, int Columns>
__attribute__((noinline)) void dot_i8(const Weight8* w, int64_t panel_bytes, const QuantizedTile* x, int first,
                                      int tiles, const Part& part, float* acc, int64_t acc_stride) {
  constexpr int kVectors = Panels * kVectorsOfPanel;
  constexpr bool kFit = sums_fit(Rows, kVectors);
  const int columns = Columns != 0 ? Columns : part.columns;
  for (int t = 0; t < tiles; ++t, acc += acc_stride) {
    const auto place = [acc](int v, int r) {
      return acc + (v / kVectorsOfPanel * Rows + r) * kPanel + v % kVectorsOfPanel * kLanes;
    };
    const int8_t* q = x[t].q + int64_t{part.begin} * Rows;
    const float* scale = x[t].scale + int64_t{part.group} * Rows;
    const int32_t* total = x[t].sum + int64_t{part.group} * Rows;
    F32 y[kVectors][Rows];  // where they do not fit, the sums wait in acc
    const F32 nothing = zero();
    if (part.begin == 0) {
#pragma GCC unroll 6
      for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          if constexpr (kFit) {
            y[v][r] = nothing;
          } else {
            store(place(v, r), nothing);
          }
        }
      }
    } else if constexpr (kFit) {
#pragma GCC unroll 6
      for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) y[v][r] = load(place(v, r));
      }
    }
    [[maybe_unused]] const Fetch fetch = fetch_of(part, first + t);
    [[maybe_unused]] const Weight8* fetched = w + fetch.offset;
    const Weight8* at = w;
    for (int c = 0; c < part.k; c += columns, scale += Rows, total += Rows) {
      I32 sum[kVectors][Rows];
#pragma GCC unroll 6
      for (int r = 0; r < Rows; ++r) {
        const I32 start = set1(static_cast<int32_t>(0u - 128u * static_cast<uint32_t>(total[r])));
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[v][r] = start;
      }
      const auto step = [&]() __attribute__((always_inline)) {
        I32 weight[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          weight[v] = load_weights(at + v / kVectorsOfPanel * panel_bytes + v % kVectorsOfPanel * 4 * kLanes);
        }
        if constexpr (Panels == 1 && Rows > kMaxStreamedRows) _mm_prefetch(at + kAheadBytes, _MM_HINT_T0);
#pragma GCC unroll 6
        for (int r = 0; r < Rows; ++r) {
          int32_t four;
          __builtin_memcpy(&four, q + 4 * r, 4);
          const I32 a = set1(four);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) dot4(sum[v][r], weight[v], a);
        }
        q += 4 * Rows;
        at += 4 * kPanel;
      };
      for (int i = 0; i < columns; i += kRun) {
        if constexpr (Panels == 2) {
#pragma GCC unroll 1
          for (int line = 0; line < fetch.lines; ++line, fetched += 64) {
            _mm_prefetch(fetched, _MM_HINT_T0);
            _mm_prefetch(fetched + panel_bytes, _MM_HINT_T0);
          }
        }
        if constexpr (Columns == kRun) {
#pragma GCC unroll 8
          for (int j = 0; j < kRun; j += 4) step();
        } else {
          const int end = columns - i < kRun ? columns - i : kRun;
#pragma GCC unroll 1
          for (int j = 0; j < end; j += 4) step();
        }
      }
#pragma GCC unroll 6
      for (int r = 0; r < Rows; ++r) {
        const F32 s = set1(scale[r]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          if constexpr (kFit) {
            y[v][r] = fma(s, to_float(sum[v][r]), y[v][r]);
          } else {
            store(place(v, r), fma(s, to_float(sum[v][r]), load(place(v, r))));
          }
        }
      }
    }
    if constexpr (kFit) {
#pragma GCC unroll 6
      for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) store(place(v, r), y[v][r]);
      }
    }
  }
}

}  // namespace precast::PRECAST_LEVEL
