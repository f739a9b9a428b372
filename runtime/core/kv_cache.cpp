// Block tables: what sequences take, are promised, and give back. The tree's side is in kv_prefix.cpp.
#include "runtime/core/kv_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/core/check.h"

namespace precast {

KvCache::KvCache(const ModelLimits& limits, const std::vector<int32_t>& num_pages, size_t event_capacity)
    : page_tokens_(limits.page_tokens), tree_(limits.page_tokens, limits.groups.size()), events_(event_capacity) {
  require(!limits.groups.empty() && limits.groups.size() == num_pages.size(), "every layer group has a pool");
  for (size_t g = 0; g < num_pages.size(); ++g) {
    require(limits.groups[g].window > 0 || g == 0, "full attention is the first group");
    groups_.push_back({limits.groups[g], PagePool(std::max(num_pages[g], 0)), 0, false, {}});
  }
}

// The first page that a row at `position` sees.
int32_t KvCache::first_page(const Group& group, int32_t position) const {
  const int32_t window = group.layers.window;
  return window == 0 ? 0 : std::max(0, position - window + 1) / page_tokens_;
}

// Most pages that `rows` rows in a row and what they see before them can touch.
int32_t KvCache::window_pages(const Group& group, int32_t rows) const {
  return static_cast<int32_t>((int64_t{group.layers.window} - 1 + rows + page_tokens_ - 2) / page_tokens_ + 1);
}

// Most pages that a sequence holds at a time from now on, until promised_length positions are computed by chunks of a
// page. It never rises while the sequence goes on.
int32_t KvCache::peak_pages(const Group& group, const Sequence& s) const {
  if (s.promised_length <= s.num_computed) return 0;
  const int32_t all = pages_for(s.promised_length) - first_page(group, s.num_computed);
  if (group.layers.window == 0) return all;
  return std::min(all, window_pages(group, std::clamp(s.length() - s.num_computed, 1, page_tokens_)));
}

int32_t KvCache::num_available(int32_t group) const {
  const Group& g = groups_[static_cast<size_t>(group)];
  if (g.layers.window == 0) return g.pool.num_free() + g.pool.num_evictable() - g.promised;
  return static_cast<int32_t>(g.pool.size() - g.pool.table_entries()) - g.promised;
}

int32_t KvCache::max_positions() const {
  int64_t most = std::numeric_limits<int32_t>::max();
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    std::set<PageId> pinned;
    int32_t entries = 0;
    for (const auto& pin : pins_) {
      const BlockTable& table = pin->tables[g];
      pinned.insert(table.pages.begin() + table.first, table.pages.end());
      entries += table.held();
    }
    // As num_available counts them.
    const int32_t pages = group.pool.size() - (group.layers.window > 0 ? entries : static_cast<int32_t>(pinned.size()));
    if (group.layers.window > 0 && window_pages(group, page_tokens_) <= pages) continue;
    most = std::min(most, int64_t{pages} * page_tokens_);
  }
  return static_cast<int32_t>(most);
}

// Pages of a group that stop being available when a sequence is admitted with its match.
int32_t KvCache::cost(const Group& group, size_t g, const Sequence& s) const {
  const int32_t shared = s.num_computed / page_tokens_;
  if (group.layers.window > 0) {
    return std::max(peak_pages(group, s), pages_for(s.num_computed) - first_page(group, s.num_computed));
  }
  int32_t pages = pages_for(s.promised_length) - shared;
  for (int32_t j = 0; j < shared; ++j) {
    const RadixNode& node = *match_.path[static_cast<size_t>(j)];
    pages += group.pool.is_evictable(node.pages[g].page) ? 1 : 0;
  }
  return pages;
}

bool KvCache::admit(Sequence& s, int32_t num_positions, int32_t spare) {
  PRECAST_CHECK(s.tables.empty() && s.num_computed == 0 && num_positions >= s.length());
  s.num_computed = find(s, match_);
  s.promised_length = num_positions;
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (cost(groups_[g], g, s) + spare <= num_available(static_cast<int32_t>(g))) continue;
    groups_[g].was_short = true;
    s.num_computed = s.promised_length = 0;
    return false;
  }
  take_match(s);
  settle(s);
  return true;
}

// Makes the promise what the sequence still lacks. It grows by no more pages than the sequence has just given back.
void KvCache::settle(Sequence& s) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    BlockTable& table = s.tables[g];
    const int32_t lacks = std::max(0, peak_pages(groups_[g], s) - table.held());
    groups_[g].promised += lacks - table.reserved;
    table.reserved = lacks;
  }
}

int32_t KvCache::coverable(const Sequence& s) const {
  int64_t most = std::numeric_limits<int32_t>::max();
  for (size_t g = 0; g < groups_.size(); ++g) {
    const BlockTable& table = s.tables[g];
    const int32_t available = std::max(0, num_available(static_cast<int32_t>(g)));
    most = std::min(most, (int64_t{table.num_pages()} + table.reserved + available) * page_tokens_);
  }
  return static_cast<int32_t>(most);
}

void KvCache::extend(Sequence& s, int32_t num_positions) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    BlockTable& table = s.tables[g];
    while (table.num_pages() < pages_for(num_positions)) {
      if (table.reserved > 0) {
        --table.reserved;
        --groups_[g].promised;
      } else {
        require(num_available(static_cast<int32_t>(g)) > 0,
                "a table grows within its promise, or while pages are available");
      }
      table.pages.push_back(take_page(g));
    }
  }
}

void KvCache::computed(Sequence& s, int32_t num_computed) {
  s.num_computed = num_computed;
  ++now_;
  if (s.state == SequenceState::prefill && s.node != nullptr) insert(s, num_computed == s.length());
  for (size_t g = 0; g < groups_.size(); ++g) {
    drop_pages_before(g, s.tables[g], first_page(groups_[g], num_computed));
  }
  settle(s);
}

void KvCache::drop_pages_before(size_t g, BlockTable& table, int32_t first) {
  if (table.first < first && std::exchange(groups_[g].was_short, false)) ++version_;
  for (; table.first < std::min(first, table.num_pages()); ++table.first) {
    PageId& page = table.pages[static_cast<size_t>(table.first)];
    release_page(g, page);
    page = -1;
  }
}

void KvCache::release(Sequence& s) {
  if (s.tables.empty()) return;
  ++now_;
  ++version_;
  RadixNode* node = s.node;
  if (node != nullptr) --node->holders;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const BlockTable& table = s.tables[g];
    for (int32_t j = table.first; j < table.num_pages(); ++j) release_page(g, table.pages[static_cast<size_t>(j)]);
    groups_[g].promised -= table.reserved;
  }
  if (node != nullptr) remove_if_useless(node);
  s.tables.clear();
  s.node = nullptr;
  s.num_computed = s.num_kept = s.promised_length = 0;
}

void KvCache::release_page(size_t g, PageId page) {
  PagePool& pool = groups_[g].pool;
  RadixNode* node = pool.node(page);
  pool.release(page);
  if (node == nullptr || !pool.is_evictable(page)) return;
  node->pages[g].used = now_;
  relist(*node, g);
}

PageId KvCache::take_page(size_t g) {
  ++taken_;
  if (groups_[g].pool.num_free() == 0) evict(g);
  return groups_[g].pool.take();
}

void KvCache::take_copies(std::vector<PageCopy>& copies) {
  copies.insert(copies.end(), copies_.begin(), copies_.end());
  copies_.clear();
}

}  // namespace precast
