// Which tokens have K/V in the cache: a tree of pages for every cache key.
//
// A node is one page: 1 … page_tokens tokens that follow those of its ancestors. Only a full node has children. Among
// siblings no node's tokens begin with all tokens of another. They are ordered lexicographically, so that the longest
// common prefix with given tokens is that of a neighbour of the place where they would stand: tokens are compared,
// never hashed.
#pragma once
#include <deque>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/core.h"

namespace precast {

// A node's page in one layer group.
struct RadixPage {
  PageId page = -1;     // −1: dropped; full attention never has that
  uint64_t used = 0;    // when a sequence last held it, in the cache's own count
  bool listed = false;  // stands in the group's eviction order
};

struct RadixNode {
  uint64_t id = 0;               // never used again; 0: the node is removed
  RadixNode* parent = nullptr;   // null: a root
  std::vector<TokenId> tokens;   // a root: none
  std::vector<RadixPage> pages;  // [group]; a root: none
  std::vector<RadixNode*> children;
  int32_t holders = 0;   // sequences whose deepest node this is
  int32_t priority = 0;  // of retention: nodes of lower ones are evicted first
  std::string key;       // a root's

  bool is_root() const { return parent == nullptr; }
};

// The longest way down a tree along given tokens.
struct RadixMatch {
  std::vector<RadixNode*> path;  // full pages, from the first
  RadixNode* partial = nullptr;  // a page behind them that begins with partial_tokens of the tokens, the most of all
  int32_t partial_tokens = 0;    // 0: there is none

  void clear() {
    path.clear();
    partial = nullptr;
    partial_tokens = 0;
  }
};

class RadixTree {
 public:
  RadixTree(int32_t page_tokens, size_t num_groups) : page_tokens_(page_tokens), num_groups_(num_groups) {}
  RadixTree(const RadixTree&) = delete;
  RadixTree& operator=(const RadixTree&) = delete;

  RadixNode* root(const std::string& key);  // made when there is none
  RadixNode* find_root(const std::string& key) const;
  void match(const RadixNode& root, std::span<const TokenId> tokens, RadixMatch& match) const;

  // Of the nodes below `parent`: the one with these tokens; one whose tokens begin with them; the one whose tokens are
  // fewer and begin them. Null: none.
  RadixNode* child(const RadixNode& parent, std::span<const TokenId> tokens) const;
  RadixNode* extension(const RadixNode& parent, std::span<const TokenId> tokens) const;
  RadixNode* beginning(const RadixNode& parent, std::span<const TokenId> tokens) const;

  // Adds a node without pages. Neither extension nor beginning of the tokens may be there.
  RadixNode* add(RadixNode& parent, std::span<const TokenId> tokens);
  // Removes a node that has no children; a root too.
  void remove(RadixNode& node);

  int32_t num_nodes() const { return num_nodes_; }  // roots not counted
  std::vector<RadixNode*> nodes() const;            // all with the roots, parents first
  // Throws InvariantError when a node breaks what is said above.
  void check() const;

 private:
  RadixNode* make();

  int32_t page_tokens_;
  size_t num_groups_;
  std::map<std::string, RadixNode*> roots_;
  // Not owned by their parents: destroying a long chain would recurse as deep as it is long.
  std::deque<RadixNode> storage_;
  std::vector<RadixNode*> unused_;
  uint64_t next_id_ = 1;
  int32_t num_nodes_ = 0;
};

}  // namespace precast
