// How what decode leaves of a step's budget is divided among the sequences in prefill.
#pragma once
#include <vector>

#include "runtime/core/core.h"

namespace precast {

enum class PrefillOrder : uint8_t {
  first_come,      // in order of admission, each as much as there is
  equal_progress,  // page by page in turn, the one with the fewest tokens computed first
};

// A sequence in prefill, and how far its next chunk goes.
struct PrefillShare {
  Sequence* sequence;
  int32_t most;  // where the chunk ends at the latest
  int32_t end;   // where it ends: num_computed when it has no share
};

// Sets every `end` so that at most `budget` rows are run, and returns how many are. A chunk ends on an absolute page
// border unless it reaches the sequence's last token, so that pages are written whole. The first in the order gets at
// least a page, or its rest, when the budget holds that and its `most` allows it.
int32_t share_prefill(PrefillOrder order, int32_t budget, int32_t page_tokens, std::vector<PrefillShare>& shares);

}  // namespace precast
