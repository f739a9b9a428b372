#include "runtime/core/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "runtime/core/request.h"

namespace precast {
namespace {

constexpr double kWeightless = 28;  // nats below the maximum: e^-28 · 2^40 < 1
constexpr double kMargin = 0.01;    // nats, for the rounding of weights
constexpr const char* kNotFinite = "the model gave NaN or infinite logits for this request";

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

Sample Sampler::sample(std::span<float> logits, const SamplingParams& params, uint64_t random_bits,
                       const LogitsProcessors& processors) {
  Sample result;
  if (!scan_.scan(logits)) {
    result.error = kNotFinite;
    return result;
  }
  const bool scored = params.logprobs || params.ranks_sequences();
  const double model_normalizer = scored ? normalizer() : 0;
  if (params.logprobs) result.logprobs.top = most_likely(logits, *params.logprobs, model_normalizer);
  changed_.clear();
  processors.apply(logits, changed_);
  if (!changed_.empty()) {
    for (const ModelLogit& changed : changed_) scan_.changed(changed.token);
    scan_.refresh();
    if (std::isinf(scan_.maximum())) {
      result.error = "min_tokens and bad_words leave no token of the vocabulary that could come next";
      return result;
    }
  }
  result.token = params.temperature < kGreedyTemperature ? scan_.best() : draw(logits, params, random_bits);
  if (scored) {
    const auto changed = std::ranges::find(changed_, result.token, &ModelLogit::token);
    const float logit = changed != changed_.end() ? changed->logit : logits[static_cast<size_t>(result.token)];
    result.logprobs.logprob = static_cast<double>(logit) - model_normalizer;
  }
  return result;
}

const char* Sampler::score(std::span<const float> logits, TokenId token, int32_t top, TokenLogprobs& logprobs) {
  if (!scan_.scan(logits)) return kNotFinite;
  const double model_normalizer = normalizer();
  logprobs.logprob = static_cast<double>(logits[static_cast<size_t>(token)]) - model_normalizer;
  logprobs.top = most_likely(logits, top, model_normalizer);
  return nullptr;
}

// log Σ exp(logit)
double Sampler::normalizer() {
  const auto sum = static_cast<double>(scan_.sum_weights(1));
  return scan_.maximum() + (std::log(sum) - std::log(kWeightOfBest));
}

std::vector<TokenLogprob> Sampler::most_likely(std::span<const float> logits, int32_t count, double normalizer) {
  const size_t n = std::min(static_cast<size_t>(count), logits.size());
  std::vector<TokenLogprob> top;
  if (n == 0) return top;
  scan_.at_least(scan_.reached_by(n), ids_);
  keys_.clear();
  for (const int32_t id : ids_) keys_.push_back(rank_key(logits[static_cast<size_t>(id)], static_cast<size_t>(id)));
  const auto end = keys_.begin() + static_cast<std::ptrdiff_t>(n);
  std::partial_sort(keys_.begin(), end, keys_.end(), std::greater<>());
  for (auto key = keys_.begin(); key != end; ++key) {
    const size_t id = id_of(*key);
    top.push_back({static_cast<TokenId>(id), static_cast<double>(logits[id]) - normalizer});
  }
  return top;
}

TokenId Sampler::draw(std::span<const float> logits, const SamplingParams& params, uint64_t random_bits) {
  const auto inverse_temperature = static_cast<float>(1.0 / params.temperature);
  if (params.top_k == 0 && params.top_p == 1 && params.min_p == 0) {
    const uint64_t total = scan_.sum_weights(inverse_temperature);
    return scan_.find(multiply_high(random_bits, total), inverse_temperature);
  }
  filter(logits, params, inverse_temperature);
  return candidates_.find(multiply_high(random_bits, candidates_.weight()));
}

void Sampler::filter(std::span<const float> logits, const SamplingParams& params, float inverse_temperature) {
  if (params.top_k > 0) {
    const auto k = static_cast<size_t>(params.top_k);
    const float threshold = scan_.reached_by(k);
    if (std::isfinite(threshold)) {
      candidates_.collect(logits, scan_, threshold, inverse_temperature);
    } else {
      collect_until(logits, params, inverse_temperature, kWeightless, [&] { return candidates_.size() >= k; });
    }
    candidates_.keep_first(k);
    if (params.top_p < 1) candidates_.keep_weight(share(params.top_p, candidates_.weight()));
  } else if (params.top_p < 1) {
    const uint64_t total = scan_.sum_weights(inverse_temperature);
    const uint64_t wanted = share(params.top_p, total);
    // Where even a whole vocabulary could not weigh what may be left out.
    const double deepest =
        std::log(static_cast<double>(logits.size()) * kWeightOfBest / static_cast<double>(total - wanted + 1));
    collect_until(logits, params, inverse_temperature, std::min(deepest + kMargin, kWeightless),
                  [&] { return candidates_.weight() >= wanted; });
    candidates_.keep_weight(wanted);
  } else {
    const double depth = std::min(-std::log(params.min_p) + kMargin, kWeightless);
    collect(logits, params, inverse_temperature, depth);
  }
  if (params.min_p > 0) candidates_.drop_below(static_cast<uint64_t>(std::ceil(params.min_p * kWeightOfBest)));
}

// Collects the tokens down to some depth below the maximum, in nats after temperature, until there are enough: few are
// deeper than the first depths, and none that count are deeper than `deepest`.
template <typename Enough>
void Sampler::collect_until(std::span<const float> logits, const SamplingParams& params, float inverse_temperature,
                            double deepest, const Enough& enough) {
  for (double depth = 4;; depth += 3) {
    collect(logits, params, inverse_temperature, std::min(depth, deepest));
    if (depth >= deepest || enough()) return;
  }
}

// The tokens down to `depth` nats below the maximum.
void Sampler::collect(std::span<const float> logits, const SamplingParams& params, float inverse_temperature,
                      double depth) {
  const double threshold = scan_.maximum() - depth * params.temperature;
  candidates_.collect(logits, scan_, static_cast<float>(threshold), inverse_temperature);
}

}  // namespace precast
