#include "runtime/core/candidates.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>

namespace precast {
namespace {

constexpr size_t kBuckets = 256;

// Buckets of ranks, narrow near the first and wider below; `distance` counts floats between a logit and the highest.
size_t bucket_of(uint64_t distance) {
  if (distance < 8) return distance;
  const int width = std::bit_width(distance);
  return static_cast<size_t>(width - 3) * 8 + ((distance >> (width - 4)) & 7);
}

}  // namespace

void Candidates::collect(std::span<const float> row, const VocabScan& scan, float threshold,
                         float inverse_temperature) {
  scan.at_least(threshold, ids_);
  logits_.resize(ids_.size());
  weights_.resize(ids_.size());
  for (size_t i = 0; i < ids_.size(); ++i) logits_[i] = row[static_cast<size_t>(ids_[i])];
  scan.weigh(logits_, inverse_temperature, weights_);
  tokens_.clear();
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (weights_[i] > 0) tokens_.push_back({rank_key(logits_[i], static_cast<size_t>(ids_[i])), weights_[i]});
  }
}

uint64_t Candidates::weight() const {
  uint64_t sum = 0;
  for (const Candidate& token : tokens_) sum += token.weight;
  return sum;
}

void Candidates::keep_from(uint64_t last_key) {
  std::erase_if(tokens_, [&](const Candidate& token) { return token.key < last_key; });
}

void Candidates::keep_first(size_t count) {
  if (tokens_.size() <= count) return;
  keys_.clear();
  for (const Candidate& token : tokens_) keys_.push_back(token.key);
  const auto last = keys_.begin() + static_cast<std::ptrdiff_t>(count) - 1;
  std::nth_element(keys_.begin(), last, keys_.end(), std::greater<>());
  keep_from(*last);
}

// Buckets narrow the choice to a few tokens; partition finds the border among those.
void Candidates::keep_weight(uint64_t weight) {
  uint64_t first = 0;
  for (const Candidate& token : tokens_) first = std::max(first, token.key);
  const auto bucket = [first](const Candidate& token) { return bucket_of((first >> 32) - (token.key >> 32)); };
  std::array<uint64_t, kBuckets> weights{};
  for (const Candidate& token : tokens_) weights[bucket(token)] += token.weight;
  size_t b = 0;
  while (b < kBuckets && weights[b] < weight) weight -= weights[b++];
  if (b == kBuckets) return;
  border_.clear();
  std::ranges::copy_if(tokens_, std::back_inserter(border_),
                       [&](const Candidate& token) { return bucket(token) == b; });
  auto low = border_.begin(), high = border_.end();  // the border lies in [low, high); all before low is kept
  while (high - low > 1) {
    const auto middle = low + (high - low) / 2;
    std::ranges::nth_element(low, middle, high, std::greater<>(), &Candidate::key);
    uint64_t left = 0;
    for (auto token = low; token != middle; ++token) left += token->weight;
    if (left >= weight) {
      high = middle;
    } else {
      weight -= left;
      low = middle;
    }
  }
  keep_from(low->key);
}

void Candidates::drop_below(uint64_t least) {
  std::erase_if(tokens_, [&](const Candidate& token) { return token.weight < least; });
}

TokenId Candidates::find(uint64_t target) const {
  size_t i = 0;
  while (target >= tokens_[i].weight) target -= tokens_[i++].weight;
  return static_cast<TokenId>(id_of(tokens_[i].key));
}

}  // namespace precast
