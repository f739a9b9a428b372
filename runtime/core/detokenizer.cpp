#include "runtime/core/detokenizer.h"

#include <algorithm>
#include <utility>

#include "runtime/core/utf8.h"

namespace precast {

Detokenizer::Detokenizer(std::shared_ptr<const VocabBytes> vocab, DetokenizerOptions options)
    : vocab_(std::move(vocab)), options_(std::move(options)) {}

int Detokenizer::push(TokenId token) {
  const size_t before = bytes_.size();
  if (vocab_ && !(options_.skip_special_tokens && vocab_->is_special(token))) {
    std::string_view bytes = vocab_->bytes(token);
    if (options_.at_start && !bytes.empty()) {
      options_.at_start = false;
      if (vocab_->drops_leading_space() && bytes.front() == ' ') bytes.remove_prefix(1);
    }
    bytes_.append(bytes);
  }
  ends_.push_back(bytes_.size());
  return ends_.size() > static_cast<size_t>(options_.min_tokens) ? find_stop(before) : -1;
}

// The first byte from `from` on that ends a stop string decides.
int Detokenizer::find_stop(size_t from) {
  for (size_t end = from + 1; end <= bytes_.size() && !options_.stop.empty(); ++end) {
    const std::string_view text = std::string_view(bytes_).substr(0, end);
    int found = -1;
    for (size_t i = 0; i < options_.stop.size(); ++i) {
      const std::string& stop = options_.stop[i];
      if (!text.ends_with(stop)) continue;
      if (found < 0 || stop.size() > options_.stop[static_cast<size_t>(found)].size()) found = static_cast<int>(i);
    }
    if (found >= 0) {
      end_ = options_.include_stop ? end : end - options_.stop[static_cast<size_t>(found)].size();
      return found;
    }
  }
  return -1;
}

// How many bytes at the end may be the beginning of a stop string.
size_t Detokenizer::held_back() const {
  const std::string_view bytes = bytes_;
  size_t most = 0;
  if (options_.include_stop) return most;
  for (const std::string_view stop : options_.stop) {
    for (size_t n = std::min(stop.size() - 1, bytes.size()); n > most; --n) {
      if (bytes.ends_with(stop.substr(0, n))) most = n;
    }
  }
  return most;
}

size_t Detokenizer::release(bool final, std::string& text) {
  size_t limit = bytes_.size();
  if (end_ != std::string::npos) {
    limit = end_;
  } else if (!final) {
    limit -= held_back();
  }
  given_ += decode_utf8(std::string_view(bytes_).substr(given_, limit - given_), final, text);
  const size_t upto = final && end_ == std::string::npos ? ends_.size() : tokens_until(given_);
  return upto - std::exchange(released_, upto);
}

// How many tokens have begun before byte `end`, or have no text and stand before it.
size_t Detokenizer::tokens_until(size_t end) const {
  const auto next = std::upper_bound(ends_.begin() + static_cast<std::ptrdiff_t>(released_), ends_.end(), end);
  const auto index = static_cast<size_t>(next - ends_.begin());
  const size_t begin = index == 0 ? 0 : ends_[index - 1];
  return index < ends_.size() && begin < end ? index + 1 : index;
}

}  // namespace precast
