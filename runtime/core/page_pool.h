// The pages of one layer group: who holds each, and which of them may be taken back.
#pragma once
#include <vector>

#include "runtime/core/core.h"

namespace precast {

// A page is free (count 0, on the free list once) or held: by block tables, and by at most one node of the tree.
// `count` is the number of all these. A page that only a node holds is evictable. Contents stay when a page is given
// back: who takes it next writes every position before it is read.
class PagePool {
 public:
  explicit PagePool(int32_t num_pages);
  int32_t size() const { return static_cast<int32_t>(counts_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_evictable() const { return evictable_; }
  int64_t table_entries() const { return table_entries_; }  // entries of block tables; shared pages several times
  int32_t count(PageId page) const { return counts_[static_cast<size_t>(page)]; }
  RadixNode* node(PageId page) const { return nodes_[static_cast<size_t>(page)]; }  // which holds it, or null
  bool is_evictable(PageId page) const { return count(page) == 1 && node(page) != nullptr; }

  // For a table: a free page, now of count 1 (one must be free); one holder more of a held page; one holder less.
  PageId take();
  void share(PageId page);
  void release(PageId page);
  // For a node: holds a page that is held and that no node has; lets go of it.
  void keep(PageId page, RadixNode* node);
  void drop(PageId page);

  // Throws InvariantError unless free list, counts and sums agree.
  void check() const;

 private:
  void free_if_unheld(PageId page);

  std::vector<int32_t> counts_;
  std::vector<RadixNode*> nodes_;
  std::vector<PageId> free_;
  int32_t evictable_ = 0;
  int64_t table_entries_ = 0;
};

}  // namespace precast
