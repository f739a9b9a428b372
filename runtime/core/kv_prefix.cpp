// The tree's side of the cache: what is found in it, enters it, and is evicted from it.
#include <algorithm>
#include <tuple>

#include "runtime/core/check.h"
#include "runtime/core/kv_cache.h"

namespace precast {

// ---- finding --------------------------------------------------------------------------------------------------------

int32_t KvCache::cached(const Sequence& s) const {
  RadixMatch match;
  return find(s, match);
}

int32_t KvCache::find(const Sequence& s, RadixMatch& match) const {
  match.clear();
  const int32_t most = s.prompt_logits ? std::min(s.length() - 1, s.num_prompt_logits) : s.length() - 1;
  const RadixNode* root = s.cache_key ? tree_.find_root(*s.cache_key) : nullptr;
  if (root == nullptr || most == 0) return 0;
  tree_.match(*root, std::span(s.tokens).first(static_cast<size_t>(most)), match);
  int32_t n = static_cast<int32_t>(match.path.size()) * page_tokens_ + match.partial_tokens;
  for (size_t g = 0; g < groups_.size();) g = find_window_pages(g, match, n) ? g + 1 : 0;
  const auto full = static_cast<size_t>(n / page_tokens_);
  if (n % page_tokens_ == 0) {
    match.partial = nullptr;
  } else if (full < match.path.size()) {
    match.partial = match.path[full];
  }
  match.partial_tokens = n % page_tokens_;
  match.path.resize(full);
  return n;
}

// Whether group g has the pages that a row at position n sees. If not, n becomes the most that could still do: every
// smaller n that reaches beyond the last page that is missing needs that page too.
bool KvCache::find_window_pages(size_t g, const RadixMatch& match, int32_t& n) const {
  if (groups_[g].layers.window == 0) return true;
  for (int32_t j = pages_for(n) - 1; j >= first_page(groups_[g], n); --j) {
    const auto i = static_cast<size_t>(j);
    const RadixNode& node = i < match.path.size() ? *match.path[i] : *match.partial;
    if (node.pages[g].page >= 0) continue;
    n = j * page_tokens_;
    return false;
  }
  return true;
}

// Gives a sequence the pages of match_, which covers its num_computed positions.
void KvCache::take_match(Sequence& s) {
  const int32_t full = s.num_computed / page_tokens_;
  s.tables.resize(groups_.size());
  ++now_;
  if (s.cache_key) {
    s.node = full > 0 ? match_.path.back() : tree_.root(*s.cache_key);
    ++s.node->holders;
    s.num_kept = full;
  }
  for (RadixNode* node : match_.path) raise_priority(*node, s.cache_priority);
  for (size_t g = 0; g < groups_.size(); ++g) {
    BlockTable& table = s.tables[g];
    table.first = first_page(groups_[g], s.num_computed);
    table.pages.assign(static_cast<size_t>(table.first), -1);
    for (int32_t j = table.first; j < full; ++j) {
      RadixNode& node = *match_.path[static_cast<size_t>(j)];
      table.pages.push_back(node.pages[g].page);
      groups_[g].pool.share(node.pages[g].page);
      relist(node, g);
    }
  }
  if (match_.partial_tokens == 0) return;
  touch(*match_.partial, s.cache_priority);
  std::vector<RadixPage> from =
      match_.partial->pages;  // taking a page may evict that node: its contents stay till then
  for (size_t g = 0; g < groups_.size(); ++g) {
    const PageId page = take_page(g);
    s.tables[g].pages.push_back(page);
    copies_.push_back({static_cast<int32_t>(g), from[g].page, page, match_.partial_tokens});
  }
}

// ---- entering -------------------------------------------------------------------------------------------------------

void KvCache::keep(Sequence& s) {
  ++now_;
  if (s.node != nullptr) insert(s, true);
}

void KvCache::insert(Sequence& s, bool with_partial) {
  while ((s.num_kept + 1) * page_tokens_ <= s.num_computed) attach(s);
  if (with_partial && s.num_computed % page_tokens_ != 0) insert_partial(s);
}

// Moves a sequence one full page further down the tree.
void KvCache::attach(Sequence& s) {
  const auto page = static_cast<size_t>(page_tokens_);
  const auto tokens = std::span<const TokenId>(s.tokens).subspan(static_cast<size_t>(s.num_kept) * page, page);
  RadixNode* node = tree_.child(*s.node, tokens);
  if (node == nullptr) {
    node = add_node(s, tokens);
  } else {
    adopt_pages(s, *node);
  }
  --s.node->holders;
  ++node->holders;
  s.node = node;
  ++s.num_kept;
  relist(*node, 0);
}

// Names the first tokens of the sequence's last page, behind which it may go on writing.
void KvCache::insert_partial(Sequence& s) {
  const auto kept = static_cast<size_t>(s.num_kept) * static_cast<size_t>(page_tokens_);
  const auto tokens = std::span<const TokenId>(s.tokens).subspan(kept, static_cast<size_t>(s.num_computed) - kept);
  if (RadixNode* node = tree_.extension(*s.node, tokens)) {
    touch(*node, s.cache_priority);
  } else {
    add_node(s, tokens);
  }
}

// A node for the page behind the sequence's own, which takes the place of a leaf that had only the first of its tokens.
RadixNode* KvCache::add_node(Sequence& s, std::span<const TokenId> tokens) {
  int32_t priority = s.cache_priority;
  if (RadixNode* shorter = tree_.beginning(*s.node, tokens)) {
    priority = std::max(priority, shorter->priority);
    remove_node(*shorter);
  }
  RadixNode* node = tree_.add(*s.node, tokens);
  node->priority = priority;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const PageId page = s.tables[g].pages[static_cast<size_t>(s.num_kept)];
    if (page < 0) continue;
    groups_[g].pool.keep(page, node);
    node->pages[g] = {page, now_, false};
  }
  ++version_;
  if (events_.wanted()) {
    const uint64_t parent = s.node->is_root() ? 0 : s.node->id;
    events_.push({CacheEvent::Kind::stored, node->id, parent, *s.cache_key, node->tokens});
  }
  return node;
}

// The sequence's page holds the same bits as the node's: it takes that one, so that whoever sits below a node holds its
// page; or gives its own where the node has none.
void KvCache::adopt_pages(Sequence& s, RadixNode& node) {
  touch(node, s.cache_priority);
  for (size_t g = 0; g < groups_.size(); ++g) {
    PageId& own = s.tables[g].pages[static_cast<size_t>(s.num_kept)];
    PageId& kept = node.pages[g].page;
    if (own < 0 || own == kept) continue;
    if (kept < 0) {
      groups_[g].pool.keep(own, &node);
      kept = own;
      node.pages[g].used = now_;
      continue;
    }
    groups_[g].pool.share(kept);
    relist(node, g);
    release_page(g, own);
    own = kept;
  }
  ++version_;
}

int32_t KvCache::pin(const std::string& key, const std::vector<TokenId>& tokens) {
  auto pin = std::make_unique<Sequence>();
  pin->cache_key = key;
  pin->tokens = tokens;
  pin->tokens.push_back(0);  // a sequence has a token that is not computed
  find(*pin, match_);
  match_.partial_tokens = 0;
  int32_t n = static_cast<int32_t>(match_.path.size()) * page_tokens_;
  for (size_t g = 0; g < groups_.size();) g = find_window_pages(g, match_, n) ? g + 1 : 0;
  match_.path.resize(static_cast<size_t>(n / page_tokens_));
  pin->num_computed = pin->promised_length = n;
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (n == 0 || cost(groups_[g], g, *pin) > num_available(static_cast<int32_t>(g))) return 0;
  }
  take_match(*pin);
  pins_.push_back(std::move(pin));
  return n;
}

void KvCache::unpin_all() {
  for (const auto& pin : pins_) release(*pin);
  pins_.clear();
}

// ---- leaving --------------------------------------------------------------------------------------------------------

void KvCache::forget(const std::string& key) {
  RadixNode* root = tree_.find_root(key);
  if (root == nullptr) return;
  std::vector<RadixNode*> nodes = {root};
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes.insert(nodes.end(), nodes[i]->children.begin(), nodes[i]->children.end());
  }
  const auto is_unheld = [&](const RadixNode& node) {
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (node.pages[g].page >= 0 && !groups_[g].pool.is_evictable(node.pages[g].page)) return false;
    }
    return node.children.empty() && node.holders == 0;
  };
  // Children first. A node without pages goes with its last child: it has no id any more then.
  for (size_t i = nodes.size(); i-- > 1;) {
    if (nodes[i]->id != 0 && is_unheld(*nodes[i])) remove_node(*nodes[i]);
  }
}

void KvCache::evict(size_t g) {
  Group& group = groups_[g];
  require(!group.order.empty(), "a page can be evicted when none is free");
  RadixNode& node = *group.order.begin()->node;
  ++evicted_;
  if (group.layers.window == 0) return remove_node(node);
  unlist(node, g);
  group.pool.drop(node.pages[g].page);
  node.pages[g].page = -1;
  remove_if_useless(&node);
}

void KvCache::remove_node(RadixNode& node) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    unlist(node, g);
    if (node.pages[g].page >= 0) groups_[g].pool.drop(node.pages[g].page);
    node.pages[g].page = -1;
  }
  remove_if_useless(&node);
}

// Removes a node that nobody sits at and that has neither pages nor children, and then its ancestors if they are so.
void KvCache::remove_if_useless(RadixNode* node) {
  const auto has_page = [](const RadixPage& page) { return page.page >= 0; };
  while (node != nullptr && node->children.empty() && node->holders == 0 &&
         std::ranges::none_of(node->pages, has_page)) {
    RadixNode* parent = node->parent;
    if (parent != nullptr && events_.wanted()) events_.push({CacheEvent::Kind::removed, node->id, 0, {}, {}});
    tree_.remove(*node);
    node = parent;
  }
  if (node != nullptr && !node->is_root()) relist(*node, 0);  // it may be a leaf now
}

// ---- the eviction order ---------------------------------------------------------------------------------------------

bool KvCache::Evictable::operator<(const Evictable& other) const {
  return std::tie(priority, used, id) < std::tie(other.priority, other.used, other.id);
}

bool KvCache::is_listable(const RadixNode& node, size_t g) const {
  if (node.is_root()) return false;
  const PageId page = node.pages[g].page;
  if (page < 0 || !groups_[g].pool.is_evictable(page)) return false;
  return groups_[g].layers.window > 0 || (node.children.empty() && node.holders == 0);
}

void KvCache::relist(RadixNode& node, size_t g) {
  if (node.is_root()) return;
  RadixPage& page = node.pages[g];
  if (page.listed == is_listable(node, g)) return;
  if (page.listed) return unlist(node, g);
  groups_[g].order.insert({node.priority, page.used, node.id, &node});
  page.listed = true;
}

void KvCache::unlist(RadixNode& node, size_t g) {
  RadixPage& page = node.pages[g];
  if (!page.listed) return;
  groups_[g].order.erase({node.priority, page.used, node.id, &node});
  page.listed = false;
}

// A use without a hold.
void KvCache::touch(RadixNode& node, int32_t priority) {
  raise_priority(node, priority);
  for (size_t g = 0; g < groups_.size(); ++g) {
    unlist(node, g);
    node.pages[g].used = now_;
    relist(node, g);
  }
}

// The priority of a node is the highest of those who used it.
void KvCache::raise_priority(RadixNode& node, int32_t priority) {
  if (priority <= node.priority) return;
  for (size_t g = 0; g < groups_.size(); ++g) unlist(node, g);
  node.priority = priority;
  for (size_t g = 0; g < groups_.size(); ++g) relist(node, g);
}

}  // namespace precast
