#include "runtime/core/candidates.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>

namespace precast {
namespace {

constexpr size_t kBuckets = 256;
constexpr size_t kFew = 64;

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
  if (weight > this->weight()) return;
  std::span<const Candidate> choice = tokens_;  // the border lies in it; `weight` is what it must still give
  while (choice.size() > kFew && narrow(choice, weight)) choice = border_;
  if (choice.data() == tokens_.data()) border_ = tokens_;
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

// Leaves the bucket of logits that has the border in border_; false when `choice` has a single logit.
bool Candidates::narrow(std::span<const Candidate> choice, uint64_t& weight) {
  uint64_t first = 0, last = ~uint64_t{0};
  for (const Candidate& token : choice) {
    first = std::max(first, token.key >> 32);
    last = std::min(last, token.key >> 32);
  }
  if (first == last) return false;
  const int shift = std::max(0, static_cast<int>(std::bit_width(first - last)) - 8);
  std::array<uint64_t, kBuckets> weights{};
  for (const Candidate& token : choice) weights[(first - (token.key >> 32)) >> shift] += token.weight;
  size_t b = 0;
  while (weights[b] < weight) weight -= weights[b++];
  scratch_.clear();
  for (const Candidate& token : choice) {
    if ((first - (token.key >> 32)) >> shift == b) scratch_.push_back(token);
  }
  std::swap(scratch_, border_);
  return true;
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
