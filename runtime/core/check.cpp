#include "runtime/core/check.h"

namespace precast {

void check_sequence(const Sequence& s, int32_t page_tokens) {
  const int64_t pages = static_cast<int64_t>(s.table.pages.size());
  require(s.num_prompt >= 1 && s.length() >= s.num_prompt, "a sequence holds its prompt");
  require(s.length() <= s.max_length, "length ≤ max_length");
  if (s.state == SequenceState::waiting || s.state == SequenceState::finished) {
    require(pages == 0 && s.table.reserved == 0, "a sequence that does not run has no pages");
    return;
  }
  if (s.state == SequenceState::prefill) {
    require(s.num_computed < s.num_prompt && s.length() == s.num_prompt, "prefill: the prompt is not computed yet");
  } else {
    require(s.num_computed == s.length() - 1 && s.num_computed >= s.num_prompt, "decode: one token is not computed");
  }
  require(pages * page_tokens >= s.num_computed, "the block table covers what is computed");
  require((pages + s.table.reserved) * page_tokens >= s.max_length - 1, "pages to completion are promised");
}

}  // namespace precast
