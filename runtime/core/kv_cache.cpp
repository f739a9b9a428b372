#include "runtime/core/kv_cache.h"

#include "runtime/core/check.h"

namespace precast {

PagePool::PagePool(int32_t num_pages) : counts_(static_cast<size_t>(num_pages), 0) {
  free_.reserve(counts_.size());
  for (PageId page = num_pages - 1; page >= 0; --page) free_.push_back(page);
}

PageId PagePool::take() {
  require(!free_.empty(), "a page is free");
  const PageId page = free_.back();
  free_.pop_back();
  counts_[static_cast<size_t>(page)] = 1;
  return page;
}

void PagePool::share(PageId page) {
  PRECAST_CHECK(count(page) >= 1);
  ++counts_[static_cast<size_t>(page)];
}

void PagePool::release(PageId page) {
  PRECAST_CHECK(count(page) >= 1);
  if (--counts_[static_cast<size_t>(page)] == 0) free_.push_back(page);
}

void PagePool::check() const {
  std::vector<bool> listed(counts_.size(), false);
  for (PageId page : free_) {
    const auto i = static_cast<size_t>(page);
    require(i < counts_.size() && !listed[i] && counts_[i] == 0, "a free page is listed once and held by nobody");
    listed[i] = true;
  }
  for (size_t i = 0; i < counts_.size(); ++i) require(listed[i] == (counts_[i] == 0), "a page is free or held");
}

KvCache::KvCache(int32_t num_pages, int32_t page_tokens) : page_tokens_(page_tokens), pool_(num_pages) {}

bool KvCache::admit(Sequence& sequence, int32_t num_positions) {
  PRECAST_CHECK(sequence.table.pages.empty() && sequence.table.reserved == 0);
  const int32_t pages = pages_for(num_positions);
  if (pages > num_available()) return false;
  sequence.table.pages.reserve(static_cast<size_t>(pages));
  sequence.table.reserved = pages;
  sequence.num_computed = 0;
  promised_ += pages;
  return true;
}

void KvCache::extend(BlockTable& table, int32_t num_positions) {
  while (static_cast<int32_t>(table.pages.size()) < pages_for(num_positions)) {
    require(table.reserved > 0, "a table grows within its promise");
    table.pages.push_back(pool_.take());
    --table.reserved;
    --promised_;
  }
}

void KvCache::release(Sequence& sequence) {
  for (PageId page : sequence.table.pages) pool_.release(page);
  promised_ -= sequence.table.reserved;
  sequence.table.pages.clear();
  sequence.table.reserved = 0;
}

void KvCache::check_integrity(const std::vector<Sequence*>& sequences) const {
  pool_.check();
  std::vector<int32_t> held(static_cast<size_t>(pool_.size()), 0);
  int32_t promised = 0;
  for (const Sequence* sequence : sequences) {
    promised += sequence->table.reserved;
    for (PageId page : sequence->table.pages) ++held[static_cast<size_t>(page)];
  }
  for (PageId page = 0; page < pool_.size(); ++page) {
    require(pool_.count(page) == held[static_cast<size_t>(page)], "a page's count is the number of its holders");
  }
  require(promised == promised_ && promised <= pool_.num_free(), "promises are kept by free pages");
}

}  // namespace precast
