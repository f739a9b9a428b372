// Which sequence holds which KV pages, and which pages of past sequences can serve again.
//
// One page pool for each layer group (ModelLimits::groups). Pages of finished work stay in a radix tree (radix_tree.h)
// until they are needed: an admitted sequence finds the longest beginning of its tokens there. Full pages are shared;
// of the page behind them, what is common is copied (copy-on-write). A group with a window needs the pages of the
// window alone, and gives back those that leave it.
//
// What the scheduler may rely on: a sequence goes admit → (extend → computed)* → release. Within the positions that
// admit has promised, another page of them is coverable at any time, whatever others take.
//
// No threads, no clock, no backend: everything here is a function of the calls. Not thread-safe.
#pragma once
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/cache_events.h"
#include "runtime/core/core.h"
#include "runtime/core/page_pool.h"
#include "runtime/core/radix_tree.h"

namespace precast {

class KvCache {
 public:
  // num_pages[group]. event_capacity: events that are kept (cache_events.h); 0: none.
  KvCache(const ModelLimits& limits, const std::vector<int32_t>& num_pages, size_t event_capacity = 0);
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  // How many of a waiting sequence's first tokens are computed: at most length − 1, so that there is always a row to
  // run. In a windowed group the pages of the window before that position are there too.
  int32_t cached(const Sequence& sequence) const;
  // Gives a waiting sequence what is cached, and promises the pages of its first num_positions ≥ length() positions.
  // False, and nothing has changed, when that would leave fewer than `spare` pages available in some group. On success
  // num_computed = cached(sequence), and a partial page waits in take_copies().
  bool admit(Sequence& sequence, int32_t num_positions, int32_t spare = 0);
  // The most positions that the tables can cover now, by promise or out of what is available. Promised are, in a group
  // with a window, the pages for chunks of a page: larger chunks run where pages are available.
  int32_t coverable(const Sequence& sequence) const;
  // Makes the tables cover positions 0 … num_positions − 1, which are coverable.
  void extend(Sequence& sequence, int32_t num_positions);
  // The K/V of the sequence's first num_computed positions are in its pages now. In prefill its full pages enter the
  // tree, and with the last token the partial one too; pages that leave a window are given back.
  void computed(Sequence& sequence, int32_t num_computed);
  // Puts everything computed into the tree: before release, when it may be of use again.
  void keep(Sequence& sequence);
  // Gives back all pages and what is left of the promise. An empty sequence may be released again.
  void release(Sequence& sequence);
  // The copies that admissions since the last call want, in order: into the next step, whoever runs in it.
  void take_copies(std::vector<PageCopy>& copies);

  // Keeps what is cached of `tokens` from eviction; returns how many tokens those are, in whole pages. 0: nothing is
  // pinned. Pages that are pinned are not available to anybody else.
  int32_t pin(const std::string& key, const std::vector<TokenId>& tokens);
  void unpin_all();
  // Removes what is cached under a key and held by nobody.
  void forget(const std::string& key);

  int32_t num_groups() const { return static_cast<int32_t>(groups_.size()); }
  int32_t num_pages(int32_t group) const { return pool(group).size(); }
  int32_t num_free(int32_t group) const { return pool(group).num_free(); }
  int32_t num_evictable(int32_t group) const { return pool(group).num_evictable(); }
  // Pages that can be promised: free or evictable, and not promised yet. In a windowed group a page that several
  // sequences share counts for each of them: one may let it leave its window and need another while others hold it.
  int32_t num_available(int32_t group) const;
  // The most positions that one sequence alone can have, should everything else be evicted.
  int32_t max_positions() const;
  int32_t num_nodes() const { return tree_.num_nodes(); }
  uint64_t num_evicted() const { return evicted_; }  // pages, since the start
  uint64_t num_taken() const { return taken_; }      // pages that sequences were given, since the start
  int32_t page_tokens() const { return page_tokens_; }
  // Changes whenever something may fit, or be found, that did not or was not before.
  uint64_t version() const { return version_; }
  CacheEvents& events() { return events_; }

  // Throws InvariantError unless `sequences` (all that were admitted) and the tree account for every page and promise.
  void check_integrity(const std::vector<Sequence*>& sequences) const;

 private:
  // The eviction order of one group: lowest retention priority, then least recently used, then oldest. For full
  // attention it holds the leaves; window pages may go alone, so for a window it holds every node with a page.
  struct Evictable {
    int32_t priority;
    uint64_t used, id;
    RadixNode* node;
    bool operator<(const Evictable& other) const;
  };
  struct Group {
    KvGroup layers;
    PagePool pool;
    int32_t promised = 0;
    bool was_short = false;  // an admission has failed for want of its pages
    std::set<Evictable> order;
  };

  const PagePool& pool(int32_t group) const { return groups_[static_cast<size_t>(group)].pool; }
  int32_t pages_for(int32_t num_positions) const { return (num_positions + page_tokens_ - 1) / page_tokens_; }
  int32_t first_page(const Group& group, int32_t position) const;
  int32_t peak_pages(const Group& group, const Sequence& sequence) const;
  int32_t window_pages(const Group& group, int32_t rows) const;
  int32_t cost(const Group& group, size_t g, const Sequence& sequence) const;
  int32_t find(const Sequence& sequence, RadixMatch& match) const;
  bool find_window_pages(size_t g, const RadixMatch& match, int32_t& num_tokens) const;
  void take_match(Sequence& sequence);
  PageId take_page(size_t g);
  void settle(Sequence& sequence);
  void insert(Sequence& sequence, bool with_partial);
  void attach(Sequence& sequence);
  void insert_partial(Sequence& sequence);
  RadixNode* add_node(Sequence& sequence, std::span<const TokenId> tokens);
  void adopt_pages(Sequence& sequence, RadixNode& node);
  void release_page(size_t g, PageId page);
  void drop_pages_before(size_t g, BlockTable& table, int32_t first);
  void remove_node(RadixNode& node);
  void remove_if_useless(RadixNode* node);
  bool is_listable(const RadixNode& node, size_t g) const;
  void relist(RadixNode& node, size_t g);
  void unlist(RadixNode& node, size_t g);
  void touch(RadixNode& node, int32_t priority);
  void raise_priority(RadixNode& node, int32_t priority);
  void evict(size_t g);
  void check_path(const Sequence& sequence) const;
  void check_group(size_t g, const std::vector<const Sequence*>& holders, const std::vector<RadixNode*>& nodes) const;

  int32_t page_tokens_;
  std::vector<Group> groups_;
  RadixTree tree_;
  std::vector<PageCopy> copies_;
  std::vector<std::unique_ptr<Sequence>> pins_;
  CacheEvents events_;
  uint64_t now_ = 0;
  uint64_t version_ = 0;
  uint64_t evicted_ = 0;
  uint64_t taken_ = 0;
  RadixMatch match_;  // kept for its memory
};

}  // namespace precast
