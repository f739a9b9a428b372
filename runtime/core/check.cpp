#include "runtime/core/check.h"

namespace precast {

void check_sequence(const Sequence& s, int32_t page_tokens) {
  require(s.num_prompt >= 1 && s.length() >= s.num_prompt, "a sequence holds its prompt");
  require(s.length() <= s.max_length, "length ≤ max_length");
  if (s.state == SequenceState::waiting || s.state == SequenceState::finished) {
    require(s.tables.empty() && s.node == nullptr, "a sequence that does not run has no pages");
    require(s.num_computed == 0 && s.num_kept == 0, "a sequence that does not run has nothing computed");
    return;
  }
  if (s.state == SequenceState::prefill) {
    require(s.num_computed < s.length(), "prefill: not all tokens are computed yet");
  } else {
    require(s.num_computed == s.length() - 1 && s.num_computed >= s.num_prompt, "decode: one token is not computed");
  }
  require(!s.tables.empty(), "a sequence that runs has block tables");
  for (const BlockTable& table : s.tables) {
    require(int64_t{table.num_pages()} * page_tokens >= s.num_computed, "the block table covers what is computed");
  }
}

}  // namespace precast
