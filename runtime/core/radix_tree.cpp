#include "runtime/core/radix_tree.h"

#include <algorithm>

#include "runtime/core/check.h"

namespace precast {
namespace {

using Tokens = std::span<const TokenId>;

int32_t common_prefix(Tokens a, Tokens b) {
  const size_t n = std::min(a.size(), b.size());
  return static_cast<int32_t>(std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(n), b.begin()).first -
                              a.begin());
}

bool begins_with(Tokens whole, Tokens part) {
  return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
}

bool less(Tokens a, Tokens b) { return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end()); }

// The first child that does not stand before the tokens.
std::vector<RadixNode*>::const_iterator place(const RadixNode& parent, Tokens tokens) {
  return std::lower_bound(parent.children.begin(), parent.children.end(), tokens,
                          [](const RadixNode* child, Tokens t) { return less(child->tokens, t); });
}

}  // namespace

RadixNode* RadixTree::root(const std::string& key) {
  if (RadixNode* found = find_root(key)) return found;
  RadixNode* node = make();
  node->key = key;
  roots_.emplace(key, node);
  return node;
}

RadixNode* RadixTree::find_root(const std::string& key) const {
  const auto found = roots_.find(key);
  return found == roots_.end() ? nullptr : found->second;
}

void RadixTree::match(const RadixNode& root, Tokens tokens, RadixMatch& match) const {
  match.clear();
  const auto page = static_cast<size_t>(page_tokens_);
  const RadixNode* node = &root;
  while (!tokens.empty() && !node->children.empty()) {
    const Tokens next = tokens.first(std::min(page, tokens.size()));
    const auto at = place(*node, next);
    RadixNode* best = nullptr;
    int32_t most = 0;
    for (const bool before : {false, true}) {
      if (before ? at == node->children.begin() : at == node->children.end()) continue;
      RadixNode* neighbour = before ? *(at - 1) : *at;
      const int32_t common = common_prefix(neighbour->tokens, next);
      if (common > most) {
        best = neighbour;
        most = common;
      }
    }
    if (most < page_tokens_) {
      match.partial = best;
      match.partial_tokens = most;
      return;
    }
    match.path.push_back(best);
    node = best;
    tokens = tokens.subspan(page);
  }
}

RadixNode* RadixTree::child(const RadixNode& parent, Tokens tokens) const {
  RadixNode* found = extension(parent, tokens);
  return found != nullptr && found->tokens.size() == tokens.size() ? found : nullptr;
}

RadixNode* RadixTree::extension(const RadixNode& parent, Tokens tokens) const {
  const auto at = place(parent, tokens);
  return at != parent.children.end() && begins_with((*at)->tokens, tokens) ? *at : nullptr;
}

// Whatever stands between a node and tokens that it begins would begin with that node too; so it is the neighbour.
RadixNode* RadixTree::beginning(const RadixNode& parent, Tokens tokens) const {
  const auto at = place(parent, tokens);
  if (at == parent.children.begin()) return nullptr;
  RadixNode* before = *(at - 1);
  return before->tokens.size() < tokens.size() && begins_with(tokens, before->tokens) ? before : nullptr;
}

RadixNode* RadixTree::add(RadixNode& parent, Tokens tokens) {
  PRECAST_CHECK(extension(parent, tokens) == nullptr && beginning(parent, tokens) == nullptr);
  const auto index = place(parent, tokens) - parent.children.begin();
  RadixNode* node = make();
  node->parent = &parent;
  node->tokens.assign(tokens.begin(), tokens.end());
  node->pages.assign(num_groups_, RadixPage{});
  parent.children.insert(parent.children.begin() + index, node);
  ++num_nodes_;
  return node;
}

void RadixTree::remove(RadixNode& node) {
  PRECAST_CHECK(node.children.empty() && node.holders == 0);
  if (node.is_root()) {
    roots_.erase(node.key);
  } else {
    std::erase(node.parent->children, &node);
    --num_nodes_;
  }
  node.id = 0;
  unused_.push_back(&node);
}

std::vector<RadixNode*> RadixTree::nodes() const {
  std::vector<RadixNode*> all;
  for (const auto& [key, root] : roots_) all.push_back(root);
  for (size_t i = 0; i < all.size(); ++i) all.insert(all.end(), all[i]->children.begin(), all[i]->children.end());
  return all;
}

void RadixTree::check() const {
  const std::vector<RadixNode*> all = nodes();
  require(all.size() == static_cast<size_t>(num_nodes_) + roots_.size(), "nodes are counted");
  for (const RadixNode* node : all) {
    if (!node->is_root()) {
      require(!node->tokens.empty() && node->tokens.size() <= static_cast<size_t>(page_tokens_), "a node is a page");
      require(node->pages.size() == num_groups_, "a node has a page in every group");
      require(node->children.empty() || node->tokens.size() == static_cast<size_t>(page_tokens_),
              "only a full page has children");
    }
    for (size_t i = 0; i < node->children.size(); ++i) {
      require(node->children[i]->parent == node, "a child knows its parent");
      if (i == 0) continue;
      const Tokens before = node->children[i - 1]->tokens, after = node->children[i]->tokens;
      require(less(before, after) && !begins_with(after, before), "siblings are ordered, and none begins another");
    }
  }
}

RadixNode* RadixTree::make() {
  RadixNode* node;
  if (unused_.empty()) {
    node = &storage_.emplace_back();
  } else {
    node = unused_.back();
    unused_.pop_back();
    *node = RadixNode{};
  }
  node->id = next_id_++;
  return node;
}

}  // namespace precast
