// What the prefix cache should know, in the plainest way: a list of token vectors. Follows a simulation step by step,
// and says for every admission how many tokens must have been found if nothing was evicted.
#pragma once
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "runtime/core/simulator.h"

namespace precast {

class NaiveCache {
 public:
  NaiveCache(int32_t page_tokens, const std::vector<SimulatedRequest>& requests)
      : page_tokens_(page_tokens), requests_(requests), known_(requests.size()) {}

  // The longest beginning of a request's `tokens`, but for the last of them, that others or itself have left.
  int32_t cached(size_t request, const std::vector<TokenId>& tokens) const {
    size_t longest = 0;
    for (size_t i = 0; i < known_.size(); ++i) {
      if (requests_[i].options.cache_salt != requests_[request].options.cache_salt) continue;
      const std::vector<TokenId>& other = known_[i].tokens;
      const size_t most = std::min(static_cast<size_t>(known_[i].kept), tokens.size() - 1);
      const auto end = other.begin() + static_cast<std::ptrdiff_t>(most);
      longest = std::max(longest,
                         static_cast<size_t>(std::mismatch(other.begin(), end, tokens.begin()).first - other.begin()));
    }
    return static_cast<int32_t>(longest);
  }

  // Before a step: who is gone or paused since the last one has left all that was computed.
  void before_step(const Simulator& simulator) {
    for (size_t i = 0; i < known_.size(); ++i) {
      const Sequence* s = simulator.sequence(i);
      if (s == nullptr || s->state == SequenceState::waiting)
        known_[i].kept = std::max(known_[i].kept, known_[i].computed);
    }
  }

  // What the step will have computed: of prompts full pages, and the rest with the last token.
  void after_step(const Simulator& simulator, const StepBatch& batch, const std::vector<size_t>& whose) {
    for (size_t k = 0; k < whose.size(); ++k) {
      const Sequence& s = *simulator.sequence(whose[k]);
      Known& known = known_[whose[k]];
      known.tokens = s.tokens;
      known.computed = batch.sequences[k].first_position + batch.sequences[k].num_rows;
      if (s.state != SequenceState::prefill) continue;
      const bool all = known.computed == s.length();
      known.kept = std::max(known.kept, all ? known.computed : known.computed / page_tokens_ * page_tokens_);
    }
  }

 private:
  struct Known {
    std::vector<TokenId> tokens;
    int32_t computed = 0;  // of the tokens, at the last step that it ran in
    int32_t kept = 0;      // of these, in the cache
  };
  int32_t page_tokens_;
  const std::vector<SimulatedRequest>& requests_;
  std::vector<Known> known_;
};

}  // namespace precast
