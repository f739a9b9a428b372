#include "runtime/core/prefill_share.h"

#include <algorithm>

namespace precast {
namespace {

// Where a chunk from `begin` may end that goes to `end` at most.
int32_t chunk_end(const PrefillShare& share, int32_t begin, int32_t end, int32_t page_tokens) {
  end = std::min(end, share.most);
  if (end >= share.sequence->length()) return share.sequence->length();
  return std::max(end / page_tokens * page_tokens, begin);
}

int32_t first_come(int32_t budget, int32_t page_tokens, std::vector<PrefillShare>& shares) {
  int32_t left = budget;
  for (PrefillShare& share : shares) {
    const int32_t begin = share.sequence->num_computed;
    share.end = chunk_end(share, begin, begin + left, page_tokens);
    left -= share.end - begin;
  }
  return budget - left;
}

int32_t equal_progress(int32_t budget, int32_t page_tokens, std::vector<PrefillShare>& shares) {
  std::vector<PrefillShare*> turns;
  for (PrefillShare& share : shares) {
    share.end = share.sequence->num_computed;
    turns.push_back(&share);
  }
  const auto behind = [](const PrefillShare* a, const PrefillShare* b) {
    return a->sequence->num_computed < b->sequence->num_computed;
  };
  std::ranges::stable_sort(turns, behind);
  int32_t left = budget;
  for (bool progress = true; progress;) {
    progress = false;
    for (PrefillShare* share : turns) {
      const int32_t border = share->end / page_tokens * page_tokens + page_tokens;
      const int32_t end = chunk_end(*share, share->end, std::min(border, share->end + left), page_tokens);
      progress |= end > share->end;
      left -= end - share->end;
      share->end = end;
    }
  }
  return budget - left;
}

}  // namespace

int32_t share_prefill(PrefillOrder order, int32_t budget, int32_t page_tokens, std::vector<PrefillShare>& shares) {
  return order == PrefillOrder::first_come ? first_come(budget, page_tokens, shares)
                                           : equal_progress(budget, page_tokens, shares);
}

}  // namespace precast
