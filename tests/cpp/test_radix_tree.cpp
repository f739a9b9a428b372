#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "runtime/core/check.h"
#include "runtime/core/radix_tree.h"

namespace precast {
namespace {

using Tokens = std::vector<TokenId>;

constexpr int32_t kPage = 3;

// The pages of `tokens` below a root, as a cache inserts them; a leaf that one of them extends gives way.
void insert(RadixTree& tree, const Tokens& tokens) {
  RadixNode* node = tree.root("");
  for (size_t at = 0; at < tokens.size(); at += kPage) {
    const auto page = std::span(tokens).subspan(at, std::min<size_t>(kPage, tokens.size() - at));
    RadixNode* next = page.size() == kPage ? tree.child(*node, page) : tree.extension(*node, page);
    if (next == nullptr) {
      if (RadixNode* shorter = tree.beginning(*node, page)) tree.remove(*shorter);
      next = tree.add(*node, page);
    }
    node = next;
  }
}

int32_t common(const Tokens& a, const Tokens& b) {
  const auto n = static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
  return static_cast<int32_t>(std::mismatch(a.begin(), a.begin() + n, b.begin()).first - a.begin());
}

TEST_CASE("a match is the longest common prefix with anything that was inserted") {
  std::mt19937 random(3);
  const auto text = [&] {
    Tokens tokens(random() % 14);
    for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 3);
    return tokens;
  };
  for (int run = 0; run < 300; ++run) {
    RadixTree tree(kPage, 1);
    tree.root("");
    std::vector<Tokens> inserted;
    for (int i = 0; i < 12; ++i) {
      inserted.push_back(text());
      insert(tree, inserted.back());
      tree.check();
      const Tokens wanted = text();
      int32_t longest = 0;
      for (const Tokens& other : inserted) longest = std::max(longest, common(other, wanted));
      RadixMatch match;
      tree.match(*tree.find_root(""), wanted, match);
      REQUIRE(static_cast<int32_t>(match.path.size()) * kPage + match.partial_tokens == longest);
    }
  }
}

TEST_CASE("keys are apart, and a long chain goes as it came") {
  RadixTree tree(1, 1);
  RadixNode* node = tree.root("a");
  tree.root("b");
  const Tokens tokens(100000, 7);
  for (size_t i = 0; i < tokens.size(); ++i) node = tree.add(*node, std::span(tokens).subspan(i, 1));
  RadixMatch match;
  tree.match(*tree.find_root("b"), tokens, match);
  CHECK(match.path.empty());
  tree.match(*tree.find_root("a"), tokens, match);
  CHECK(match.path.size() == tokens.size());
  CHECK(tree.find_root("c") == nullptr);
  CHECK(tree.num_nodes() == 100000);
}

TEST_CASE("a broken order is found") {
  RadixTree tree(2, 1);
  RadixNode* root = tree.root("");
  tree.add(*root, Tokens{1, 2});
  RadixNode* second = tree.add(*root, Tokens{3, 4});
  tree.check();
  second->tokens = {1, 1};
  CHECK_THROWS_AS(tree.check(), InvariantError);
  second->tokens = {3};
  tree.check();
  second->tokens = {1, 2, 3};
  CHECK_THROWS_AS(tree.check(), InvariantError);
}

}  // namespace
}  // namespace precast
