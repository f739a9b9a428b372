// Quantizes activation rows to int8, per token or per token and group of columns, into the tile that linear_i8 reads.
#include "plugins/cpu/simd.h"

namespace precast::PRECAST_LEVEL {

namespace {

// The bits of |x|. As integers they are ordered like the magnitudes, with infinity and NaN on top, so that one maximum
// finds the largest magnitude and whether all of them are finite.
inline __m256i magnitude_bits(__m256 x) {
  return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7FFFFFFF));
}

inline int32_t max_lane(__m256i v) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, _MM_SHUFFLE(1, 0, 3, 2)));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, _MM_SHUFFLE(2, 3, 0, 1)));
  return _mm_cvtsi128_si32(m);
}

inline int32_t sum_lanes(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(1, 0, 3, 2)));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(2, 3, 0, 1)));
  return _mm_cvtsi128_si32(s);
}

// Eight lanes at every level: the loads and the division set the pace.
inline __m256 load_eight(const float* x, int n) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return n >= 8 ? _mm256_loadu_ps(x) : _mm256_maskload_ps(x, _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lanes));
}

// max|x| / 127 over n values; 0 when that underflows, NaN when one of them is not finite.
float scale_of(const float* x, int n) {
  __m256i largest = _mm256_setzero_si256();
  for (int i = 0; i < n; i += 8) largest = _mm256_max_epi32(largest, magnitude_bits(load_eight(x + i, n - i)));
  const int32_t bits = max_lane(largest);
  if (bits >= 0x7F800000) return __builtin_nanf("");
  float magnitude;
  __builtin_memcpy(&magnitude, &bits, 4);
  return magnitude / 127.0f;
}

// q of n values, zeros up to `columns`; groups of four go to out, out + stride, … Returns Σ q.
int32_t quantize_group(const float* x, int n, int columns, float scale, int8_t* out, int64_t stride) {
  const bool usable = scale > 0;
  const __m256 divisor = _mm256_set1_ps(usable ? scale : 1.0f);
  const __m256i most = _mm256_set1_epi32(127), least = _mm256_set1_epi32(-127);
  __m256i sum = _mm256_setzero_si256();
  for (int c = 0; c < columns; c += 8) {
    __m256i q = _mm256_setzero_si256();
    if (usable && c < n) q = _mm256_cvtps_epi32(_mm256_div_ps(load_eight(x + c, n - c), divisor));
    q = _mm256_max_epi32(_mm256_min_epi32(q, most), least);  // a denormal scale is rounded: |x| / scale can pass 127
    sum = _mm256_add_epi32(sum, q);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
    const __m128i bytes = _mm_packs_epi16(words, words);
    const int32_t four = _mm_cvtsi128_si32(bytes);
    __builtin_memcpy(out, &four, 4);
    out += stride;
    if (c + 4 < columns) {
      const int32_t next = _mm_extract_epi32(bytes, 1);
      __builtin_memcpy(out, &next, 4);
      out += stride;
    }
  }
  return sum_lanes(sum);
}

}  // namespace

void quantize_tile(const float* x, int64_t ldx, int rows, int cols, int k, int group, const QuantizedTile& out) {
  const int columns = group == 0 ? k : group;
  for (int r = 0; r < rows; ++r) {
    for (int begin = 0, g = 0; begin < k; begin += columns, ++g) {
      const float* values = x + r * ldx + begin;
      const int n = cols - begin < columns ? cols - begin : columns;
      const float scale = scale_of(values, n);
      const int64_t at = int64_t{g} * rows + r;
      out.scale[at] = scale;
      int8_t* q = out.q + (int64_t{begin} / 4 * rows + r) * 4;
      out.sum[at] = quantize_group(values, n, columns, scale, q, int64_t{4} * rows);
    }
  }
}

}  // namespace precast::PRECAST_LEVEL
