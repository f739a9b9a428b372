// What sampling does over a whole vocabulary. Each token's arithmetic is the same on every level, and sums are of whole
// numbers, so that every level gives the same bits.
#include "plugins/cpu/simd.h"

namespace precast::PRECAST_LEVEL {

namespace {

constexpr float kNothing = -__builtin_inff();
constexpr float kWeightless = 28;  // nats below the maximum: e^-28 · 2^40 < 1

constexpr float kTaylor[] = {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};

// Vectors that go through the exponential together, each operation on all of them: one alone would wait for itself.
constexpr int kTogether = 4;

// x · 2^n, n the lowest bits of t
inline F32 scale_by_lowest_bits(F32 x, F32 t) {
#if defined(PRECAST_ISA_AVX512)
  const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), n));
#else
  const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), n));
#endif
}

// x ← 2^40 · e^((x − most) · inverse_temperature), with the exponential of exp_nonpositive in
// runtime/core/vocab_scan.h, operation by operation. Adding 1.5 · 2^23 rounds to an integer, which the lowest bits
// hold; 40 more are the factor.
template <int kVectors>
inline void weigh(F32 (&x)[kVectors], F32 most, F32 inverse_temperature) {
  const F32 shift = set1(0x1.8p23f + 40);
  F32 t[kVectors], p[kVectors];
  for (F32& v : x) v = mul(sub(v, most), inverse_temperature);
  for (F32& v : x) v = max(v, set1(-87.0f));
  for (int j = 0; j < kVectors; ++j) t[j] = fma(x[j], set1(1.44269504f), shift);
  for (int j = 0; j < kVectors; ++j) p[j] = sub(shift, t[j]);
  for (int j = 0; j < kVectors; ++j) x[j] = fma(p[j], set1(0.693145752f), x[j]);
  for (int j = 0; j < kVectors; ++j) x[j] = fma(p[j], set1(1.42860677e-6f), x[j]);
  for (F32& v : p) v = set1(1.0f / 720);
  for (const float c : kTaylor) {
    for (int j = 0; j < kVectors; ++j) p[j] = fma(p[j], x[j], set1(c));
  }
  for (int j = 0; j < kVectors; ++j) x[j] = scale_by_lowest_bits(p[j], t[j]);
}

// Sums of whole numbers below 2^53: exact in any order.
struct Sum {
  __m256d lanes[2] = {_mm256_setzero_pd(), _mm256_setzero_pd()};

  void add_floor(__m256 x) {
    const __m256 whole = _mm256_round_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    lanes[0] = _mm256_add_pd(lanes[0], _mm256_cvtps_pd(_mm256_castps256_ps128(whole)));
    lanes[1] = _mm256_add_pd(lanes[1], _mm256_cvtps_pd(_mm256_extractf128_ps(whole, 1)));
  }
#if defined(PRECAST_ISA_AVX512)
  void add_floor(__m512 x) {
    add_floor(_mm512_castps512_ps256(x));
    add_floor(_mm512_extractf32x8_ps(x, 1));
  }
#endif
  uint64_t total() const {
    alignas(32) double parts[4];
    _mm256_store_pd(parts, _mm256_add_pd(lanes[0], lanes[1]));
    return static_cast<uint64_t>(parts[0] + parts[1] + parts[2] + parts[3]);
  }
};

inline uint32_t at_least(F32 x, F32 threshold) {
#if defined(PRECAST_ISA_AVX512)
  return _mm512_cmp_ps_mask(x, threshold, _CMP_GE_OQ);
#else
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x, threshold, _CMP_GE_OQ)));
#endif
}

inline int block_length(int n, int begin) { return n - begin < kVocabBlock ? n - begin : kVocabBlock; }

}  // namespace

bool vocab_maxima(const float* x, int n, float* maxima) {
  F32 bad = zero();  // x · 0 is NaN where x is not finite
  for (int begin = 0; begin < n; begin += kVocabBlock) {
    const int length = block_length(n, begin);
    F32 m[4] = {set1(kNothing), set1(kNothing), set1(kNothing), set1(kNothing)};
    int i = 0;
    for (; i + 4 * kLanes <= length; i += 4 * kLanes) {
      for (int j = 0; j < 4; ++j) {
        const F32 v = load(x + begin + i + j * kLanes);
        m[j] = max(m[j], v);
        bad = add(bad, mul(v, zero()));
      }
    }
    for (; i < length; i += kLanes) {
      const F32 v = load_first(x + begin + i, length - i);
      m[0] = max(m[0], first_lanes(length - i, v, set1(kNothing)));
      bad = add(bad, mul(v, zero()));
    }
    *maxima++ = max_lanes(max(max(m[0], m[1]), max(m[2], m[3])));
  }
  return sum_lanes(bad) == 0;
}

void vocab_weight_sums(const float* x, int n, const float* maxima, float most, float inverse_temperature,
                       uint64_t* sums) {
  const F32 m = set1(most), inverse = set1(inverse_temperature);
  for (int begin = 0; begin < n; begin += kVocabBlock, ++maxima, ++sums) {
    *sums = 0;
    if ((most - *maxima) * inverse_temperature >= kWeightless) continue;
    const int length = block_length(n, begin);
    Sum sum;
    int i = 0;
    for (; i + kTogether * kLanes <= length; i += kTogether * kLanes) {
      F32 w[kTogether];
      for (int j = 0; j < kTogether; ++j) w[j] = load(x + begin + i + j * kLanes);
      weigh(w, m, inverse);
      for (const F32 v : w) sum.add_floor(v);
    }
    for (; i < length; i += kLanes) {
      F32 w[1] = {load_first(x + begin + i, length - i)};
      weigh(w, m, inverse);
      sum.add_floor(first_lanes(length - i, w[0], zero()));
    }
    *sums = sum.total();
  }
}

void vocab_weights(const float* x, int n, float most, float inverse_temperature, uint64_t* weights) {
  const F32 m = set1(most), inverse = set1(inverse_temperature);
  for (int i = 0; i < n; i += kTogether * kLanes) {
    alignas(64) float lanes[kTogether * kLanes];
    F32 w[kTogether];
    for (int j = 0; j < kTogether; ++j) {
      const int left = n - i - j * kLanes;
      w[j] = left > 0 ? load_first(x + i + j * kLanes, left) : zero();
    }
    weigh(w, m, inverse);
    for (int j = 0; j < kTogether; ++j) store(lanes + j * kLanes, w[j]);
    const int count = n - i < kTogether * kLanes ? n - i : kTogether * kLanes;
    for (int j = 0; j < count; ++j) weights[i + j] = static_cast<uint64_t>(static_cast<int64_t>(lanes[j]));
  }
}

int vocab_at_least(const float* x, int n, float threshold, int32_t* positions) {
  const F32 t = set1(threshold);
  int found = 0, i = 0;
  for (; i + 64 <= n; i += 64) {
    uint64_t mask = 0;
    for (int j = 0; j < 64; j += kLanes) mask |= uint64_t{at_least(load(x + i + j), t)} << j;
    for (; mask != 0; mask &= mask - 1) positions[found++] = i + __builtin_ctzll(mask);
  }
  for (; i < n; ++i) {
    if (x[i] >= threshold) positions[found++] = i;
  }
  return found;
}

}  // namespace precast::PRECAST_LEVEL
