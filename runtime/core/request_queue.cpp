#include "runtime/core/request_queue.h"

#include <algorithm>
#include <utility>

#include "runtime/core/check.h"

namespace precast {

void RequestQueue::add(Sequence* sequence) {
  sequence->arrival = ++arrivals_;
  waiting_.push_back(sequence);
}

void RequestQueue::put_back(Sequence* paused) {
  PRECAST_CHECK(paused->num_pauses > 0);
  const auto later = [](const Sequence* a, const Sequence* b) { return a->start < b->start; };
  paused_.insert(std::upper_bound(paused_.begin(), paused_.end(), paused, later), paused);
}

void RequestQueue::remove(Sequence* sequence) { std::erase(sequence->num_pauses > 0 ? paused_ : waiting_, sequence); }

bool RequestQueue::admitted(Sequence* sequence) {
  remove(sequence);
  if (sequence->num_pauses > 0) return false;
  bool urgent = false;
  for (Sequence* other : waiting_) {
    if (other->arrival > sequence->arrival) break;
    urgent |= ++other->num_overtaken == max_overtakes_;
  }
  return urgent;
}

void RequestQueue::candidates(const KvCache& cache, std::vector<Sequence*>& out) const {
  out = paused_;
  // Who arrived earlier has been overtaken as often at least: the urgent ones come first.
  auto s = waiting_.begin();
  while (s != waiting_.end() && is_urgent(**s)) out.push_back(*s++);
  const auto first = static_cast<std::ptrdiff_t>(out.size());
  const bool all = order_ == RequestOrder::priority;
  const auto others = all ? waiting_.end() - s : std::min<std::ptrdiff_t>(waiting_.end() - s, kLookahead);
  out.insert(out.end(), s, s + others);
  if (order_ == RequestOrder::priority) {
    const auto before = [](const Sequence* a, const Sequence* b) {
      return a->priority != b->priority ? a->priority > b->priority : a->arrival < b->arrival;
    };
    const size_t most = std::min(out.size(), static_cast<size_t>(first) + kLookahead);
    std::partial_sort(out.begin() + first, out.begin() + static_cast<std::ptrdiff_t>(most), out.end(), before);
    out.resize(most);
  } else if (order_ == RequestOrder::cache_aware) {
    std::vector<std::pair<int32_t, Sequence*>> ranked;
    for (auto c = out.begin() + first; c != out.end(); ++c) ranked.emplace_back(cache.cached(**c), *c);
    std::ranges::stable_sort(ranked, [](const auto& a, const auto& b) { return a.first > b.first; });
    std::ranges::transform(ranked, out.begin() + first, [](const auto& r) { return r.second; });
  }
}

void RequestQueue::append_all(std::vector<Sequence*>& out) const {
  out.insert(out.end(), paused_.begin(), paused_.end());
  out.insert(out.end(), waiting_.begin(), waiting_.end());
}

}  // namespace precast
