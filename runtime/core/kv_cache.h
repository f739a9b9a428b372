// Which sequence holds which KV pages. The contract behind which a prefix cache can live: the scheduler says what a
// sequence will need, and never asks where pages come from.
#pragma once
#include <vector>

#include "runtime/core/core.h"

namespace precast {

// Pages with reference counts. A page is free (count 0, on the free list once) or held by `count` tables. Contents stay
// when a page is given back: who takes it next writes every position before it is read.
class PagePool {
 public:
  explicit PagePool(int32_t num_pages);
  int32_t size() const { return static_cast<int32_t>(counts_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  PageId take();              // a free page, now of count 1. One must be free.
  void share(PageId page);    // one holder more of a page that is held
  void release(PageId page);  // one holder less; the last one frees it
  int32_t count(PageId page) const { return counts_[static_cast<size_t>(page)]; }
  // Throws InvariantError unless free list and counts agree.
  void check() const;

 private:
  std::vector<int32_t> counts_;
  std::vector<PageId> free_;
};

// The cache of one engine. Reuses nothing yet: every sequence starts at position 0.
//
// A table goes admit → extend* → release. Between admit and release, extend cannot fail, because admit has promised the
// pages to completion. Not thread-safe: the loop's alone.
class KvCache {
 public:
  KvCache(int32_t num_pages, int32_t page_tokens);

  // Promises pages for `num_positions` positions to an empty table. Returns false, and changes nothing, when the pages
  // that are neither held nor promised do not suffice. On success table and num_computed hold what was found of the
  // sequence's tokens (nothing yet); at least the last token of the prompt is always left to compute.
  bool admit(Sequence& sequence, int32_t num_positions);
  // Makes the table cover positions 0 … num_positions − 1, out of its own promise.
  void extend(BlockTable& table, int32_t num_positions);
  // Gives back all pages and what is left of the promise. The table is empty then; an empty one may be released again.
  void release(Sequence& sequence);

  int32_t num_pages() const { return pool_.size(); }
  int32_t num_free() const { return pool_.num_free(); }                   // not held, though perhaps promised
  int32_t num_available() const { return pool_.num_free() - promised_; }  // neither held nor promised

  // Throws InvariantError unless the tables of `sequences` (all that were admitted) account for every page and promise.
  void check_integrity(const std::vector<Sequence*>& sequences) const;

 private:
  int32_t pages_for(int32_t num_positions) const { return (num_positions + page_tokens_ - 1) / page_tokens_; }

  int32_t page_tokens_;
  PagePool pool_;
  int32_t promised_ = 0;
};

}  // namespace precast
