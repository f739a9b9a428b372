// Whether the cache's books agree with each other.
#include <unordered_map>

#include "runtime/core/check.h"
#include "runtime/core/kv_cache.h"

namespace precast {

void KvCache::check_integrity(const std::vector<Sequence*>& sequences) const {
  std::vector<const Sequence*> holders(sequences.begin(), sequences.end());
  for (const auto& pin : pins_) holders.push_back(pin.get());
  tree_.check();
  std::unordered_map<const RadixNode*, int32_t> sitting;
  for (const Sequence* s : holders) {
    require(s->tables.size() == groups_.size(), "an admitted sequence has a table in every group");
    require((s->node != nullptr) == s->cache_key.has_value(), "who has a key sits in the tree");
    if (s->node == nullptr) continue;
    ++sitting[s->node];
    check_path(*s);
  }
  const std::vector<RadixNode*> nodes = tree_.nodes();
  for (const RadixNode* node : nodes) {
    const auto found = sitting.find(node);
    require(node->holders == (found == sitting.end() ? 0 : found->second), "a node's holders are those who sit at it");
    require(!node->children.empty() || node->holders > 0 || !node->is_root(), "a root is of use");
  }
  for (size_t g = 0; g < groups_.size(); ++g) check_group(g, holders, nodes);
}

void KvCache::check_group(size_t g, const std::vector<const Sequence*>& holders,
                          const std::vector<RadixNode*>& nodes) const {
  const Group& group = groups_[g];
  group.pool.check();
  std::vector<int32_t> held(static_cast<size_t>(group.pool.size()), 0);
  int32_t promised = 0;
  for (const Sequence* s : holders) {
    const BlockTable& table = s->tables[g];
    promised += table.reserved;
    require(table.reserved == std::max(0, peak_pages(group, *s) - table.held()), "a promise is what a sequence lacks");
    for (int32_t j = 0; j < table.num_pages(); ++j) {
      const PageId page = table.pages[static_cast<size_t>(j)];
      require((page < 0) == (j < table.first), "a table has its pages from the first of the window on");
      if (page >= 0) ++held[static_cast<size_t>(page)];
    }
  }
  size_t listed = 0;
  for (RadixNode* node : nodes) {
    if (node->is_root()) continue;
    const RadixPage& page = node->pages[g];
    require(page.page >= 0 || group.layers.window > 0, "a node has its page of full attention");
    require(page.listed == is_listable(*node, g), "the eviction order has who can be evicted");
    listed += page.listed ? 1 : 0;
    if (page.page < 0) continue;
    require(group.pool.node(page.page) == node, "a page knows its node");
    ++held[static_cast<size_t>(page.page)];
  }
  require(listed == group.order.size(), "the eviction order has nobody else");
  for (PageId page = 0; page < group.pool.size(); ++page) {
    require(group.pool.count(page) == held[static_cast<size_t>(page)], "a page's count is the number of its holders");
  }
  require(promised == group.promised && num_available(static_cast<int32_t>(g)) >= 0, "promises can be kept");
}

// A sequence that sits at a node holds the pages of it and its ancestors, as far as it sees them.
void KvCache::check_path(const Sequence& s) const {
  const RadixNode* node = s.node;
  const auto page = static_cast<size_t>(page_tokens_);
  require(s.num_kept * page_tokens_ <= s.num_computed, "what is in the tree is computed");
  for (int32_t j = s.num_kept - 1; j >= 0; --j, node = node->parent) {
    require(!node->is_root() &&
                std::equal(node->tokens.begin(), node->tokens.end(),
                           s.tokens.begin() + static_cast<std::ptrdiff_t>(j) * page_tokens_) &&
                node->tokens.size() == page,
            "the path to a sequence's node has its tokens");
    for (size_t g = 0; g < groups_.size(); ++g) {
      const PageId own = s.tables[g].pages[static_cast<size_t>(j)];
      require(own < 0 || own == node->pages[g].page, "who sits below a node holds its page");
    }
  }
  require(node->is_root() && node->key == *s.cache_key, "the path begins at the root of the sequence's key");
}

}  // namespace precast
