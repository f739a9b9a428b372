#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

#include "runtime/core/cache_key.h"
#include "runtime/core/check.h"
#include "runtime/core/kv_cache.h"

namespace precast {
namespace {

using Tokens = std::vector<TokenId>;

ModelLimits limits(int32_t page, std::vector<int32_t> windows = {0}) {
  ModelLimits l{100, 8, 64, 1000, page, {}};
  for (const int32_t window : windows) l.groups.push_back({window, 1, 8});
  return l;
}

Sequence sequence(Tokens tokens, std::optional<std::string> key = "") {
  Sequence s;
  s.num_prompt = static_cast<int32_t>(tokens.size());
  s.max_length = s.num_prompt + 100;
  s.tokens = std::move(tokens);
  s.cache_key = std::move(key);
  return s;
}

Tokens count(int32_t n, TokenId first = 0) {
  Tokens tokens(static_cast<size_t>(n));
  for (int32_t i = 0; i < n; ++i) tokens[static_cast<size_t>(i)] = first + i;
  return tokens;
}

// Admits, computes all of it, and finishes.
void run(KvCache& cache, Sequence& s) {
  REQUIRE(cache.admit(s, s.length()));
  s.state = SequenceState::prefill;
  cache.extend(s, s.length());
  cache.computed(s, s.length());
}

void finish(KvCache& cache, Sequence& s) {
  cache.keep(s);
  cache.release(s);
  s.state = SequenceState::finished;
}

TEST_CASE("a promise is kept though others take pages in between") {
  KvCache cache(limits(32), {4});
  Sequence a = sequence({1}, std::nullopt), b = a, c = a;
  REQUIRE(cache.admit(a, 65));  // 3 pages
  CHECK(cache.num_free(0) == 4);
  CHECK(cache.num_available(0) == 1);
  CHECK_FALSE(cache.admit(b, 33));  // 2 pages
  CHECK(b.tables.empty());
  REQUIRE(cache.admit(c, 32));
  cache.extend(c, 32);
  cache.extend(a, 65);
  CHECK(a.tables[0].pages.size() == 3);
  CHECK(cache.num_free(0) == 0);
  cache.check_integrity({&a, &c});
  CHECK_THROWS_AS(cache.extend(a, 97), InvariantError);
  cache.release(a);
  cache.release(a);  // an empty one: nothing
  cache.release(c);
  CHECK(cache.num_available(0) == 4);
}

TEST_CASE("full pages are shared and the partial one is copied; the last token is always left to run") {
  KvCache cache(limits(4), {20});
  Sequence a = sequence(count(10));
  run(cache, a);
  Sequence b = sequence(count(10)), c = sequence(count(7)), d = sequence({0, 1, 2, 3, 4, 9, 9, 9});
  CHECK(cache.cached(b) == 9);
  REQUIRE(cache.admit(b, 12));
  CHECK(b.num_computed == 9);
  CHECK(b.tables[0].pages[0] == a.tables[0].pages[0]);
  CHECK(b.tables[0].pages[1] == a.tables[0].pages[1]);
  CHECK(b.tables[0].pages[2] != a.tables[0].pages[2]);
  std::vector<PageCopy> copies;
  cache.take_copies(copies);
  REQUIRE(copies.size() == 1);
  CHECK(copies[0].from == a.tables[0].pages[2]);
  CHECK(copies[0].to == b.tables[0].pages[2]);
  CHECK(copies[0].num_tokens == 1);
  CHECK(cache.cached(c) == 6);
  CHECK(cache.cached(d) == 5);
  cache.check_integrity({&a, &b});
  finish(cache, a);
  finish(cache, b);
  CHECK(cache.num_available(0) == 20);
  CHECK(cache.num_free(0) < 20);
}

TEST_CASE("who computes what is there already takes the page that is there") {
  KvCache cache(limits(4), {20});
  Sequence a = sequence(count(9)), b = sequence(count(9));
  REQUIRE(cache.admit(a, 9));
  REQUIRE(cache.admit(b, 9));
  for (Sequence* s : {&a, &b}) {
    s->state = SequenceState::prefill;
    cache.extend(*s, 9);
    cache.computed(*s, 9);
  }
  CHECK(a.tables[0].pages[0] == b.tables[0].pages[0]);
  CHECK(a.tables[0].pages[1] == b.tables[0].pages[1]);
  CHECK(a.tables[0].pages[2] != b.tables[0].pages[2]);
  CHECK(cache.num_free(0) == 16);
  cache.check_integrity({&a, &b});
}

TEST_CASE("salts, adapters and requests keep to themselves, whatever they are called") {
  KvCache cache(limits(4), {30});
  const std::string keys[] = {shared_cache_key({}),      shared_cache_key(""),       shared_cache_key("a"),
                              shared_cache_key({}, "a"), shared_cache_key("1", "a"), shared_cache_key("1adapter1:a"),
                              private_cache_key(1),      private_cache_key(11),      shared_cache_key("request1")};
  for (const std::string& key : keys) {
    Sequence s = sequence(count(9), key);
    CHECK(cache.cached(s) == 0);
    run(cache, s);
    finish(cache, s);
    s.state = SequenceState::waiting;
    CHECK(cache.cached(s) == 8);
  }
  Sequence none = sequence(count(9), std::nullopt);
  CHECK(cache.cached(none) == 0);
  const int32_t nodes = cache.num_nodes();
  cache.forget(private_cache_key(1));
  CHECK(cache.num_nodes() == nodes - 3);
  CHECK(cache.cached(sequence(count(9), private_cache_key(1))) == 0);
  CHECK(cache.cached(sequence(count(9), private_cache_key(11))) == 8);
  cache.check_integrity({});
}

TEST_CASE("the least recently used leaf of the lowest priority goes first, what is pinned or held never") {
  KvCache cache(limits(4), {8}, 100);
  Sequence old = sequence(count(8, 10)), young = sequence(count(8, 30)), dear = sequence(count(4, 50)),
           pinned = sequence(count(4, 70));
  dear.cache_priority = 80;
  for (Sequence* s : {&dear, &pinned, &old, &young}) {
    run(cache, *s);
    finish(cache, *s);
  }
  CHECK(cache.pin("", count(5, 70)) == 4);
  CHECK(cache.num_free(0) == 2);
  CHECK(cache.num_available(0) == 7);
  const auto holds = [&](const Sequence& like) {
    Sequence probe = sequence(like.tokens);
    probe.tokens.push_back(99);
    return cache.cached(probe);
  };
  Sequence taker = sequence(count(12, 90), std::nullopt);
  run(cache, taker);  // 3 pages: one is taken from `old`
  CHECK(holds(old) == 4);
  CHECK(holds(young) == 8);
  Sequence more = sequence(count(12, 90), std::nullopt);
  run(cache, more);
  CHECK(holds(old) == 0);
  CHECK(holds(young) == 0);
  CHECK(holds(dear) == 4);
  CHECK(holds(pinned) == 4);
  CHECK(cache.num_available(0) == 1);
  Sequence last = sequence(count(4, 90), std::nullopt), none = sequence(count(1), std::nullopt);
  run(cache, last);
  CHECK(holds(dear) == 0);
  CHECK(holds(pinned) == 4);
  CHECK_FALSE(cache.admit(none, 1));
  CHECK(cache.max_positions() == 28);
  cache.check_integrity({&taker, &more, &last});
  cache.unpin_all();
  CHECK(cache.admit(none, 1));
  CHECK(cache.num_evicted() == 5);
  std::vector<CacheEvent> events;
  CHECK(cache.events().take(events) == 0);
  CHECK(std::ranges::count_if(events, [](const auto& e) { return e.kind == CacheEvent::Kind::removed; }) == 5);
}

TEST_CASE("whoever uses a page lends it its priority") {
  KvCache cache(limits(4, {0, 4}), {6, 12});
  Sequence first = sequence(count(9)), second = sequence(count(10)), other = sequence(count(8, 50));
  first.cache_priority = 1;
  second.cache_priority = 60;
  for (Sequence* s : {&first, &second, &other}) {
    run(cache, *s);
    finish(cache, *s);
    cache.check_integrity({});
  }
  Sequence taker = sequence(count(8, 90), std::nullopt);
  run(cache, taker);  // takes what `other` left, though it was used last
  CHECK(cache.cached(sequence(count(10))) == 9);
  CHECK(cache.cached(sequence(count(9, 50))) < 8);
}

TEST_CASE("events are stored before removed, and the oldest are lost when nobody takes them") {
  KvCache cache(limits(4), {3}, 2);
  Sequence a = sequence(count(9)), b = sequence(count(9, 50));
  run(cache, a);
  finish(cache, a);
  std::vector<CacheEvent> events;
  CHECK(cache.events().take(events) == 1);  // of three
  REQUIRE(events.size() == 2);
  CHECK(events[0].tokens == count(4, 4));
  CHECK(events[1].parent == events[0].node);
  CHECK(events[1].tokens == Tokens{8});
  run(cache, b);
  CHECK(cache.events().take(events) == 4);  // three removed, one stored
  CHECK(events[1].tokens == Tokens{58});
}

TEST_CASE("a windowed group gives back what leaves the window, and a hit needs the window before it") {
  KvCache cache(limits(4, {0, 6}), {20, 5});
  Sequence a = sequence(count(20));
  REQUIRE(cache.admit(a, 24));
  a.state = SequenceState::prefill;
  for (const int32_t end : {8, 12, 16, 20}) {
    cache.extend(a, end);
    cache.computed(a, end);
    cache.check_integrity({&a});
    CHECK(a.tables[1].first == (end - 6 + 1) / 4);
  }
  CHECK(a.tables[0].held() == 5);
  CHECK(a.tables[1].held() == 2);
  CHECK(cache.num_evictable(1) == 3);
  // All pages of the window are still there for every position.
  CHECK(cache.cached(sequence(count(15))) == 14);
  finish(cache, a);
  Sequence other = sequence(count(8, 50), std::nullopt);
  run(cache, other);
  cache.check_integrity({&other});
  CHECK(cache.num_free(1) == 0);
  CHECK(cache.num_evictable(1) == 3);
  // The oldest two window pages are gone: a hit of 9 … 12 tokens would need one of them.
  CHECK(cache.cached(sequence(count(12))) == 0);
  CHECK(cache.cached(sequence(count(15))) == 14);
  CHECK(cache.cached(sequence(count(20))) == 19);
}

TEST_CASE("where every layer has a window, a path without pages leads to the window") {
  KvCache cache(limits(4, {6}), {6});
  Sequence a = sequence(count(40));
  REQUIRE(cache.admit(a, 40));
  a.state = SequenceState::prefill;
  for (int32_t end = 4; end <= 40; end += 4) {
    cache.extend(a, end);
    cache.computed(a, end);
    cache.check_integrity({&a});
  }
  finish(cache, a);
  cache.check_integrity({});
  CHECK(cache.num_nodes() == 10);
  CHECK(cache.cached(sequence(count(41))) == 40);
  CHECK(cache.cached(sequence(count(30))) == 29);
  CHECK(cache.cached(sequence(count(18))) == 0);
  Sequence b = sequence(count(24, 60), std::nullopt);
  REQUIRE(cache.admit(b, 24));
  cache.extend(b, 24);
  cache.check_integrity({&b});
  CHECK(cache.num_nodes() == 0);  // with the last of its pages the whole path is of no use
}

// One run of random calls on a small cache, watched by two oracles: the books (check_integrity), and the list of all
// that was ever inserted, which bounds what can be found. Without eviction it is what must be found.
struct RandomCalls {
  std::mt19937 random;
  int32_t page;
  bool roomy;
  KvCache cache;
  std::vector<std::unique_ptr<Sequence>> live;
  std::map<std::string, std::vector<Tokens>> inserted;

  int pick(int low, int high) { return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1)); }

  static KvCache make(std::mt19937& random, int32_t page, bool roomy, bool windows) {
    std::vector<int32_t> pages, sizes;
    if (!windows || random() % 2 == 0) sizes.push_back(0);
    if (windows) sizes.push_back(1 + static_cast<int32_t>(random() % 12));
    if (windows && random() % 2 == 0) sizes.push_back(sizes.back() + 3);
    for (size_t i = 0; i < sizes.size(); ++i) pages.push_back(roomy ? 4000 : 6 + static_cast<int32_t>(random() % 20));
    return KvCache(limits(page, sizes), pages, 50);
  }

  RandomCalls(unsigned seed, bool is_roomy, bool windows)
      : random(seed),
        page(static_cast<int32_t>(1 + random() % 5)),
        roomy(is_roomy),
        cache(make(random, page, is_roomy, windows)) {}

  Tokens text() {
    Tokens tokens(static_cast<size_t>(pick(1, 18)));
    for (TokenId& token : tokens) token = pick(0, 9) < 7 ? 0 : pick(0, 2);
    return tokens;
  }

  void note(const Sequence& s, int32_t computed) {
    if (s.cache_key) inserted[*s.cache_key].emplace_back(s.tokens.begin(), s.tokens.begin() + computed);
  }

  int32_t longest(const Sequence& s) {
    int32_t most = 0;
    if (!s.cache_key) return 0;
    for (const Tokens& other : inserted[*s.cache_key]) {
      const auto n = static_cast<std::ptrdiff_t>(std::min(other.size(), s.tokens.size() - 1));
      const auto common = std::mismatch(other.begin(), other.begin() + n, s.tokens.begin()).first - other.begin();
      most = std::max(most, static_cast<int32_t>(common));
    }
    return most;
  }

  void admit() {
    auto s =
        std::make_unique<Sequence>(sequence(text(), pick(0, 5) == 0 ? std::nullopt : std::optional<std::string>("k")));
    s->cache_priority = pick(0, 2);
    const int32_t found = cache.cached(*s);
    REQUIRE(found <= longest(*s));
    REQUIRE(found < s->length());
    if (roomy) REQUIRE(found == longest(*s));
    if (!cache.admit(*s, s->length() + pick(0, 10))) return;
    REQUIRE(s->num_computed == found);
    s->state = SequenceState::prefill;
    live.push_back(std::move(s));
  }

  void advance(Sequence& s) {
    const bool decoding = s.num_computed == s.length();
    if (decoding) {
      s.tokens.push_back(pick(0, 2));
      s.state = SequenceState::decode;
    }
    const int32_t end = std::min(cache.coverable(s), decoding ? s.length() : pick(s.num_computed + 1, s.length()));
    if (s.length() <= s.promised_length) REQUIRE(end > s.num_computed);
    if (end <= s.num_computed) {
      s.tokens.pop_back();
      return;
    }
    cache.extend(s, end);
    cache.computed(s, end);
    if (!decoding) note(s, end == s.length() ? end : end / page * page);
  }

  void leave(size_t i) {
    Sequence& s = *live[i];
    if (pick(0, 3) > 0) {
      note(s, s.num_computed);
      cache.keep(s);
    }
    cache.release(s);
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
  }

  void check() {
    std::vector<Sequence*> all;
    for (const auto& s : live) all.push_back(s.get());
    cache.check_integrity(all);
  }

  void run(int calls) {
    std::vector<PageCopy> copies;
    while (calls-- > 0) {
      const int choice = pick(0, 9);
      if (choice < 3) {
        admit();
      } else if (!live.empty() && choice < 8) {
        advance(*live[static_cast<size_t>(pick(0, static_cast<int>(live.size()) - 1))]);
      } else if (!live.empty()) {
        leave(static_cast<size_t>(pick(0, static_cast<int>(live.size()) - 1)));
      }
      check();
      copies.clear();
      cache.take_copies(copies);
    }
    while (!live.empty()) leave(0);
    check();
    for (int32_t g = 0; g < cache.num_groups(); ++g) REQUIRE(cache.num_available(g) == cache.num_pages(g));
    cache.forget("k");
    REQUIRE(cache.num_nodes() == 0);
    for (int32_t g = 0; g < cache.num_groups(); ++g) REQUIRE(cache.num_free(g) == cache.num_pages(g));
  }
};

TEST_CASE("random calls: books agree, and nothing is found that was not computed") {
  for (unsigned seed = 0; seed < 400; ++seed) RandomCalls(seed, false, seed % 2 == 1).run(150);
}

TEST_CASE("random calls with room for all: everything that was computed is found") {
  for (unsigned seed = 0; seed < 200; ++seed) RandomCalls(seed, true, false).run(150);
}

}  // namespace
}  // namespace precast
