// The register tiles of attention: out[r][c] += Σ_k a_r[k] · b[k][c], in rising k, one accumulator per output. Both
// products of attention are this one: scores = q·K over head columns, and o = p·V over tokens.
#pragma once
#include "plugins/cpu/kv_element.h"

namespace precast::PRECAST_LEVEL {

// Rows × vectors of a tile. On AVX2 3 × 4 fills the 16 registers (12 accumulators, one vector of b, one broadcast);
// four rows, as of a KV head with four query heads, take 4 × 2 rather than go over b twice. AVX-512 has 32 registers.
#if defined(PRECAST_ISA_AVX512)
inline constexpr int kMaxRows = 8;
constexpr int vectors_of(int) { return 2; }
inline int rows_at_once(int left) { return left < kMaxRows ? left : kMaxRows; }
#else
inline constexpr int kMaxRows = 4;
constexpr int vectors_of(int rows) { return rows <= 3 ? 4 : 2; }
inline int rows_at_once(int left) { return left == 4 ? 4 : left < 3 ? left : 3; }
#endif

// One tile of exactly Rows × Vectors·kLanes. `fresh`: out is not read and counts as zero.
template <int Rows, int Vectors, typename T>
inline void tile(const float* const* a, const T* b, int64_t ldb, int count, float* out, int64_t ldo, bool fresh) {
  F32 acc[Rows][Vectors];
  const float* rows[Rows];
  for (int r = 0; r < Rows; ++r) {
    rows[r] = a[r];
    for (int v = 0; v < Vectors; ++v) acc[r][v] = fresh ? zero() : load(out + r * ldo + v * kLanes);
  }
  for (int k = 0; k < count; ++k, b += ldb) {
    F32 column[Vectors];
    for (int v = 0; v < Vectors; ++v) column[v] = load_any(b + v * kLanes);
    for (int r = 0; r < Rows; ++r) {
      const F32 x = set1(rows[r][k]);
      for (int v = 0; v < Vectors; ++v) acc[r][v] = fma(x, column[v], acc[r][v]);
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Vectors; ++v) store(out + r * ldo + v * kLanes, acc[r][v]);
  }
}

// The last columns, fewer than a vector.
template <int Rows, typename T>
inline void tile_tail(const float* const* a, const T* b, int64_t ldb, int count, int columns, float* out, int64_t ldo,
                      bool fresh) {
  F32 acc[Rows];
  for (int r = 0; r < Rows; ++r) acc[r] = fresh ? zero() : load_first(out + r * ldo, columns);
  for (int k = 0; k < count; ++k, b += ldb) {
    const F32 column = load_any_first(b, columns);
    for (int r = 0; r < Rows; ++r) acc[r] = fma(set1(a[r][k]), column, acc[r]);
  }
  for (int r = 0; r < Rows; ++r) store_first(out + r * ldo, columns, acc[r]);
}

template <int Rows, typename T>
void row_tile(const float* const* a, const T* b, int64_t ldb, int count, int columns, float* out, int64_t ldo,
              bool fresh) {
  constexpr int kVectors = vectors_of(Rows);
  int c = 0;
  for (; c + kVectors * kLanes <= columns; c += kVectors * kLanes) {
    tile<Rows, kVectors>(a, b + c, ldb, count, out + c, ldo, fresh);
  }
  for (; c + kLanes <= columns; c += kLanes) tile<Rows, 1>(a, b + c, ldb, count, out + c, ldo, fresh);
  if (c < columns) tile_tail<Rows>(a, b + c, ldb, count, columns - c, out + c, ldo, fresh);
}

// out [rows ≤ kMaxRows][ldo] += a · b, b [count][ldb] of any KV element.
template <typename T>
void accumulate_rows(const float* const* a, int rows, const T* b, int64_t ldb, int count, int columns, float* out,
                     int64_t ldo, bool fresh) {
  switch (rows) {
    case 1:
      return row_tile<1>(a, b, ldb, count, columns, out, ldo, fresh);
    case 2:
      return row_tile<2>(a, b, ldb, count, columns, out, ldo, fresh);
    case 3:
      return row_tile<3>(a, b, ldb, count, columns, out, ldo, fresh);
    case 4:
      return row_tile<4>(a, b, ldb, count, columns, out, ldo, fresh);
#if defined(PRECAST_ISA_AVX512)
    case 5:
      return row_tile<5>(a, b, ldb, count, columns, out, ldo, fresh);
    case 6:
      return row_tile<6>(a, b, ldb, count, columns, out, ldo, fresh);
    case 7:
      return row_tile<7>(a, b, ldb, count, columns, out, ldo, fresh);
    case 8:
      return row_tile<8>(a, b, ldb, count, columns, out, ldo, fresh);
#endif
    default:
      return;
  }
}

}  // namespace precast::PRECAST_LEVEL
