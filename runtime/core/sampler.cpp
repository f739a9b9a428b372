#include "runtime/core/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "runtime/core/request.h"

namespace precast {
namespace {

constexpr int kLanes = 16;
constexpr size_t kTile = 4096;       // tokens of one partial sum of the log-softmax
constexpr float kUnit = 0x1p40f;     // the weight of the most likely token
constexpr float kBucketsPerNat = 8;  // 256 buckets reach over e^-28 = 2^-40, where weights end

// Ranks (logit falling, id rising) as falling integers.
uint64_t rank_key(float logit, size_t id) {
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);  // −0 and 0 are equal
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return (uint64_t{ordered} << 32) | (0xFFFFFFFFu - static_cast<uint32_t>(id));
}

size_t id_of(uint64_t key) { return 0xFFFFFFFFu - static_cast<uint32_t>(key); }

// Lanes, so that the compiler makes vectors of a maximum that it may not reorder.
float maximum(std::span<const float> x) {
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
  }
  for (; i < x.size(); ++i) lanes[0] = std::max(lanes[0], x[i]);
  return *std::max_element(lanes, lanes + kLanes);
}

bool all_finite(std::span<const float> x) {
  uint32_t bad = 0;
  for (float value : x) bad |= (std::bit_cast<uint32_t>(value) & 0x7F800000u) == 0x7F800000u ? 1u : 0u;
  return bad == 0;
}

TokenId first_equal(std::span<const float> x, float value) {
  return static_cast<TokenId>(std::find(x.begin(), x.end(), value) - x.begin());
}

double log_sum_exp(std::span<const float> x, float max) {
  double total = 0;
  for (size_t begin = 0; begin < x.size(); begin += kTile) {
    const auto tile = x.subspan(begin, std::min(kTile, x.size() - begin));
    float lanes[kLanes] = {};
    size_t i = 0;
    for (; i + kLanes <= tile.size(); i += kLanes) {
      for (size_t j = 0; j < kLanes; ++j) lanes[j] += exp_nonpositive(tile[i + j] - max);
    }
    for (; i < tile.size(); ++i) lanes[0] += exp_nonpositive(tile[i] - max);
    for (float lane : lanes) total += lane;
  }
  return max + std::log(total);
}

std::vector<TokenLogprob> most_likely(std::span<const float> x, int32_t count, double normalizer) {
  const size_t n = std::min(static_cast<size_t>(count), x.size());
  std::vector<uint64_t> best;  // falling
  float worst = -std::numeric_limits<float>::infinity();
  for (size_t id = 0; n > 0 && id < x.size(); ++id) {
    if (best.size() == n && x[id] <= worst) continue;
    const uint64_t key = rank_key(x[id], id);
    best.insert(std::upper_bound(best.begin(), best.end(), key, std::greater<>()), key);
    if (best.size() > n) best.pop_back();
    worst = x[id_of(best.back())];
  }
  std::vector<TokenLogprob> top;
  for (uint64_t key : best) {
    const size_t id = id_of(key);
    top.push_back({static_cast<TokenId>(id), static_cast<double>(x[id]) - normalizer});
  }
  return top;
}

// floor(a · b / 2^64)
uint64_t multiply_high(uint64_t a, uint64_t b) {
  const uint64_t a1 = a >> 32, a0 = a & 0xFFFFFFFFu, b1 = b >> 32, b0 = b & 0xFFFFFFFFu;
  const uint64_t middle = a1 * b0 + (a0 * b0 >> 32);
  const uint64_t middle2 = a0 * b1 + (middle & 0xFFFFFFFFu);
  return a1 * b1 + (middle >> 32) + (middle2 >> 32);
}

uint64_t share(double fraction, uint64_t total) {
  const auto part = static_cast<uint64_t>(std::ceil(fraction * static_cast<double>(total)));
  return std::clamp<uint64_t>(part, 1, total);
}

}  // namespace

// 2^n · e^r with |r| ≤ ln 2 / 2: the Taylor polynomial of degree 7 is within 6e-9 there. Plain arithmetic, so that
// loops around it become vectors; a shift by 1.5 · 2^23 rounds to the nearest integer.
float exp_nonpositive(float x) {
  x = x > -87.0f ? x : -87.0f;
  constexpr float kShift = 0x1.8p23f;
  const float n = (x * 1.44269504f + kShift) - kShift;
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;  // ln 2 in two parts; the first times n is exact
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

Sampler::Sampler(int32_t vocab_size)
    : weights_(static_cast<size_t>(vocab_size)),
      buckets_(static_cast<size_t>(vocab_size)),
      bucket_counts_(kBuckets),
      bucket_weights_(kBuckets) {}

Sample Sampler::sample(std::span<float> logits, const SamplingParams& params, uint64_t random_bits,
                       std::span<const TokenId> forbidden) {
  Sample result;
  if (!all_finite(logits)) {
    result.error = "the model gave NaN or infinite logits for this request";
    return result;
  }
  float max = maximum(logits);
  double normalizer = 0;
  if (params.logprobs) {
    normalizer = log_sum_exp(logits, max);
    result.logprobs.top = most_likely(logits, *params.logprobs, normalizer);
  }
  if (!forbidden.empty()) {
    for (TokenId id : forbidden) logits[static_cast<size_t>(id)] = -std::numeric_limits<float>::infinity();
    max = maximum(logits);
    if (std::isinf(max)) {
      result.error = "min_tokens is not reached and every token of the vocabulary is a stop token";
      return result;
    }
  }
  result.token =
      params.temperature < kGreedyTemperature ? first_equal(logits, max) : draw(logits, max, params, random_bits);
  if (params.logprobs) result.logprobs.logprob = logits[static_cast<size_t>(result.token)] - normalizer;
  return result;
}

TokenId Sampler::draw(std::span<const float> logits, float max, const SamplingParams& params, uint64_t random_bits) {
  weigh(logits, max, static_cast<float>(1.0 / params.temperature));
  const bool filtered = params.top_k > 0 || params.top_p < 1 || params.min_p > 0;
  const uint64_t last = filtered ? last_kept(logits, params) : 0;
  if (filtered) {
    for (size_t id = 0; id < logits.size(); ++id) {
      if (rank_key(logits[id], id) < last) weights_[id] = 0;
    }
  }
  const uint64_t total = std::accumulate(weights_.begin(), weights_.end(), uint64_t{0});
  uint64_t target = multiply_high(random_bits, total);  // 0 … total − 1
  size_t id = 0;
  while (target >= weights_[id]) target -= weights_[id++];
  return static_cast<TokenId>(id);
}

// Fills weights_ and buckets_.
void Sampler::weigh(std::span<const float> logits, float max, float inverse_temperature) {
  constexpr float kDeepest = (kBuckets - 0.5f) / kBucketsPerNat;
  for (size_t begin = 0; begin < logits.size(); begin += kTile) {
    const size_t n = std::min(kTile, logits.size() - begin);
    const float* x = logits.data() + begin;
    float weight[kTile];
    int32_t bucket[kTile];
    for (size_t i = 0; i < n; ++i) {
      const float depth = (max - x[i]) * inverse_temperature;
      weight[i] = exp_nonpositive(-depth) * kUnit;
      bucket[i] = static_cast<int32_t>((depth < kDeepest ? depth : kDeepest) * kBucketsPerNat);
    }
    for (size_t i = 0; i < n; ++i) buckets_[begin + i] = static_cast<uint8_t>(bucket[i]);
    for (size_t i = 0; i < n; ++i) weights_[begin + i] = static_cast<uint64_t>(weight[i]);
  }
}

// The rank key of the last token that the filters keep. Buckets first narrow the choice to a few candidates; partition
// finds the border among those.
uint64_t Sampler::last_kept(std::span<const float> logits, const SamplingParams& params) {
  const auto k = static_cast<size_t>(params.top_k);
  uint64_t total = 0;
  std::fill(bucket_counts_.begin(), bucket_counts_.end(), 0);
  std::fill(bucket_weights_.begin(), bucket_weights_.end(), 0);
  for (size_t id = 0; id < logits.size(); ++id) {
    ++bucket_counts_[buckets_[id]];
    bucket_weights_[buckets_[id]] += weights_[id];
    total += weights_[id];
  }
  const uint64_t wanted = share(params.top_p, total);
  size_t count = 0;
  uint64_t mass = 0;
  int last_bucket = -1;
  const auto enough = [&] { return (k > 0 && count >= k) || (k == 0 && params.top_p < 1 && mass >= wanted); };
  while (last_bucket + 1 < kBuckets && !enough()) {
    ++last_bucket;
    count += static_cast<size_t>(bucket_counts_[static_cast<size_t>(last_bucket)]);
    mass += bucket_weights_[static_cast<size_t>(last_bucket)];
  }
  candidates_.clear();
  for (size_t id = 0; id < logits.size(); ++id) {
    if (buckets_[id] <= last_bucket && weights_[id] > 0) candidates_.push_back(rank_key(logits[id], id));
  }

  auto begin = candidates_.begin(), end = candidates_.end();
  if (k > 0 && candidates_.size() > k) {
    end = begin + static_cast<std::ptrdiff_t>(k);
    std::nth_element(begin, end - 1, candidates_.end(), std::greater<>());
  }
  const auto weight_of = [&](auto first, auto last) {
    uint64_t sum = 0;
    for (; first != last; ++first) sum += weights_[id_of(*first)];
    return sum;
  };
  if (params.top_p < 1) {
    uint64_t need = k > 0 ? share(params.top_p, weight_of(begin, end)) : wanted;
    auto low = begin, high = end;  // the border lies in [low, high); all before low is kept
    while (high - low > 1) {
      const auto middle = low + (high - low) / 2;
      std::nth_element(low, middle, high, std::greater<>());
      const uint64_t left = weight_of(low, middle);
      if (left >= need) {
        high = middle;
      } else {
        need -= left;
        low = middle;
      }
    }
    end = high;
  }
  const auto least = static_cast<uint64_t>(std::ceil(params.min_p * static_cast<double>(kUnit)));
  uint64_t last = std::numeric_limits<uint64_t>::max();
  for (auto key = begin; key != end; ++key) {
    if (weights_[id_of(*key)] >= least) last = std::min(last, *key);
  }
  return last;
}

}  // namespace precast
