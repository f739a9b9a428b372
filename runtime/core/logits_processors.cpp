#include "runtime/core/logits_processors.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace precast {
namespace {

float to_float(double x) {
  constexpr double kMost = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(x, -kMost, kMost));
}

void set(std::span<float> logits, TokenId token, float logit, std::vector<ModelLogit>& changed) {
  float& place = logits[static_cast<size_t>(token)];
  changed.push_back({token, place});
  place = logit;
}

void ban(std::span<float> logits, TokenId token, std::vector<ModelLogit>& changed) {
  set(logits, token, -std::numeric_limits<float>::infinity(), changed);
}

}  // namespace

LogitsProcessors::LogitsProcessors(const SamplingParams& params, std::span<const TokenId> prompt,
                                   std::vector<TokenId> stop_tokens)
    : repetition_(params.repetition_penalty),
      presence_(params.presence_penalty),
      frequency_(params.frequency_penalty),
      bias_(params.logit_bias.begin(), params.logit_bias.end()),
      bad_words_(params.bad_words),
      stop_tokens_(std::move(stop_tokens)),
      before_min_tokens_(params.min_tokens) {
  if (repetition_ != 1) {
    for (const TokenId token : prompt) count(token, 0);
  }
  for (const auto& word : bad_words_) longest_bad_word_ = std::max(longest_bad_word_, word.size());
  if (longest_bad_word_ > 1) {
    const size_t kept = std::min(longest_bad_word_ - 1, prompt.size());
    latest_.assign(prompt.end() - static_cast<std::ptrdiff_t>(kept), prompt.end());
  }
}

void LogitsProcessors::push(TokenId token) {
  if (repetition_ != 1 || presence_ != 0 || frequency_ != 0) count(token, 1);
  if (before_min_tokens_ > 0) --before_min_tokens_;
  if (longest_bad_word_ < 2) return;
  // Cut to half only now and then, so that a token costs no shift.
  if (latest_.size() >= 2 * longest_bad_word_ + 64) {
    latest_.erase(latest_.begin(), latest_.end() - static_cast<std::ptrdiff_t>(longest_bad_word_));
  }
  latest_.push_back(token);
}

void LogitsProcessors::count(TokenId token, int32_t in_output) {
  const auto [place, is_new] = where_.try_emplace(token, occurred_.size());
  if (is_new) occurred_.push_back({token, 0});
  occurred_[place->second].in_output += in_output;
}

void LogitsProcessors::apply(std::span<float> logits, std::vector<ModelLogit>& changed) const {
  for (const auto& [token, bias] : bias_) {
    set(logits, token, to_float(static_cast<double>(logits[static_cast<size_t>(token)]) + bias), changed);
  }
  penalize(logits, changed);
  if (before_min_tokens_ > 0) {
    for (const TokenId token : stop_tokens_) ban(logits, token, changed);
  }
  ban_bad_words(logits, changed);
}

void LogitsProcessors::penalize(std::span<float> logits, std::vector<ModelLogit>& changed) const {
  for (const auto& [token, in_output] : occurred_) {
    double x = logits[static_cast<size_t>(token)];
    x = x > 0 ? x / repetition_ : x * repetition_;
    if (in_output > 0) x = x - frequency_ * in_output - presence_;
    set(logits, token, to_float(x), changed);
  }
}

void LogitsProcessors::ban_bad_words(std::span<float> logits, std::vector<ModelLogit>& changed) const {
  for (const auto& word : bad_words_) {
    const std::span<const TokenId> begin(word.data(), word.size() - 1);
    if (begin.size() > latest_.size()) continue;
    if (std::equal(begin.begin(), begin.end(), latest_.end() - static_cast<std::ptrdiff_t>(begin.size()))) {
      ban(logits, word.back(), changed);
    }
  }
}

}  // namespace precast
