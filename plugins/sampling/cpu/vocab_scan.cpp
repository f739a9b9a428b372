// What sampling does over a whole vocabulary. Without FMA, and with sums of integers: every level gives the same bits.
#include "plugins/cpu/simd.h"

namespace precast::PRECAST_LEVEL {

namespace {

constexpr float kNothing = -__builtin_inff();
constexpr float kWeightless = 28;           // nats below the maximum: e^-28 · 2^40 < 1
constexpr int64_t kMagic = 0x4330LL << 48;  // the bits of 2^52

constexpr float kTaylor[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};

// As exp_nonpositive in runtime/core/sampler.h, operation by operation.
inline F32 exp_nonpositive(F32 x) {
  x = max(x, set1(-87.0f));
  const F32 shift = set1(0x1.8p23f);
  const F32 n = sub(add(mul(x, set1(1.44269504f)), shift), shift);
  const F32 r = sub(sub(x, mul(n, set1(0.693145752f))), mul(n, set1(1.42860677e-6f)));
  F32 p = set1(1.0f / 5040);
  for (const float c : kTaylor) p = add(mul(p, r), set1(c));
  return mul(p, exp2_int(n));
}

// 2^40 · e^((x − most) · inverse_temperature)
inline F32 weight(F32 x, F32 most, F32 inverse_temperature) {
  return mul(exp_nonpositive(sub(zero(), mul(sub(most, x), inverse_temperature))), set1(0x1p40f));
}

// floor(x) + kMagic for 0 ≤ x < 2^52: adding 2^52 leaves an integer in the lower bits of the double.
inline __m256i integers(__m128 x) {
  return _mm256_castpd_si256(_mm256_add_pd(_mm256_cvtps_pd(x), _mm256_set1_pd(0x1p52)));
}

struct Integers {
  __m256i low, high;
};

inline Integers integers(__m256 x) {
  const __m256 whole = _mm256_round_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  return {integers(_mm256_castps256_ps128(whole)), integers(_mm256_extractf128_ps(whole, 1))};
}

struct Sum {
  __m256i low = _mm256_setzero_si256(), high = _mm256_setzero_si256();

  void add_halves(__m256 x) {
    const Integers i = integers(x);
    low = _mm256_add_epi64(low, i.low);
    high = _mm256_add_epi64(high, i.high);
  }
  void add_lanes(F32 x) {
#if defined(PRECAST_ISA_AVX512)
    add_halves(_mm512_castps512_ps256(x));
    add_halves(_mm512_extractf32x8_ps(x, 1));
#else
    add_halves(x);
#endif
  }
  // `count`: how many floats were added.
  uint64_t total(int count) const {
    alignas(32) uint64_t parts[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(parts), _mm256_add_epi64(low, high));
    return parts[0] + parts[1] + parts[2] + parts[3] - static_cast<uint64_t>(count) * static_cast<uint64_t>(kMagic);
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
    for (; i + kLanes <= length; i += kLanes) sum.add_lanes(weight(load(x + begin + i), m, inverse));
    if (i < length) {
      const F32 w = weight(load_first(x + begin + i, length - i), m, inverse);
      sum.add_lanes(first_lanes(length - i, w, zero()));
      i += kLanes;
    }
    *sums = sum.total(i);
  }
}

void vocab_weights(const float* x, int n, float most, float inverse_temperature, uint64_t* weights) {
  const F32 m = set1(most), inverse = set1(inverse_temperature);
  for (int i = 0; i < n; i += kLanes) {
    alignas(64) float w[kLanes];
    store(w, weight(load_first(x + i, n - i), m, inverse));
    for (int j = 0; j < kLanes && i + j < n; ++j) weights[i + j] = static_cast<uint64_t>(static_cast<int64_t>(w[j]));
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
