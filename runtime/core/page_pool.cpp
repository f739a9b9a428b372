#include "runtime/core/page_pool.h"

#include "runtime/core/check.h"

namespace precast {

PagePool::PagePool(int32_t num_pages)
    : counts_(static_cast<size_t>(num_pages), 0), nodes_(static_cast<size_t>(num_pages), nullptr) {
  free_.reserve(counts_.size());
  for (PageId page = num_pages - 1; page >= 0; --page) free_.push_back(page);
}

PageId PagePool::take() {
  require(!free_.empty(), "a page is free");
  const PageId page = free_.back();
  free_.pop_back();
  counts_[static_cast<size_t>(page)] = 1;
  ++table_entries_;
  return page;
}

void PagePool::share(PageId page) {
  PRECAST_CHECK(count(page) >= 1);
  if (is_evictable(page)) --evictable_;
  ++counts_[static_cast<size_t>(page)];
  ++table_entries_;
}

void PagePool::release(PageId page) {
  PRECAST_CHECK(count(page) >= (node(page) == nullptr ? 1 : 2));
  --counts_[static_cast<size_t>(page)];
  --table_entries_;
  if (is_evictable(page)) ++evictable_;
  free_if_unheld(page);
}

void PagePool::keep(PageId page, RadixNode* node) {
  PRECAST_CHECK(count(page) >= 1 && nodes_[static_cast<size_t>(page)] == nullptr);
  ++counts_[static_cast<size_t>(page)];
  nodes_[static_cast<size_t>(page)] = node;
}

void PagePool::drop(PageId page) {
  PRECAST_CHECK(node(page) != nullptr);
  if (is_evictable(page)) --evictable_;
  nodes_[static_cast<size_t>(page)] = nullptr;
  --counts_[static_cast<size_t>(page)];
  free_if_unheld(page);
}

void PagePool::free_if_unheld(PageId page) {
  if (count(page) == 0) free_.push_back(page);
}

void PagePool::check() const {
  std::vector<bool> listed(counts_.size(), false);
  for (PageId page : free_) {
    const auto i = static_cast<size_t>(page);
    require(i < counts_.size() && !listed[i] && counts_[i] == 0, "a free page is listed once and held by nobody");
    listed[i] = true;
  }
  int32_t evictable = 0;
  int64_t entries = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    require(listed[i] == (counts_[i] == 0), "a page is free or held");
    entries += counts_[i] - (nodes_[i] == nullptr ? 0 : 1);
    evictable += counts_[i] == 1 && nodes_[i] != nullptr ? 1 : 0;
  }
  require(evictable == evictable_, "evictable pages are counted");
  require(entries == table_entries_, "entries of tables are counted");
}

}  // namespace precast
