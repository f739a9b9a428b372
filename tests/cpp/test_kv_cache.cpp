#include <doctest/doctest.h>

#include <random>
#include <set>

#include "runtime/core/check.h"
#include "runtime/core/kv_cache.h"

namespace precast {
namespace {

TEST_CASE("a promise is kept though others take pages in between") {
  KvCache cache(4, 32);
  Sequence a, b, c;
  REQUIRE(cache.admit(a, 65));  // 3 pages
  CHECK(cache.num_free() == 4);
  CHECK(cache.num_available() == 1);
  CHECK_FALSE(cache.admit(b, 33));  // 2 pages
  CHECK(b.table.reserved == 0);
  REQUIRE(cache.admit(c, 32));
  cache.extend(c.table, 32);
  cache.extend(a.table, 65);
  CHECK(a.table.pages.size() == 3);
  CHECK(cache.num_free() == 0);
  cache.check_integrity({&a, &c});
  CHECK_THROWS_AS(cache.extend(a.table, 97), InvariantError);
  cache.release(a);
  cache.release(a);  // of an empty table: nothing
  cache.release(c);
  CHECK(cache.num_available() == 4);
}

TEST_CASE("a shared page is free when its last holder lets go") {
  PagePool pool(1);
  const PageId page = pool.take();
  pool.share(page);
  pool.release(page);
  CHECK(pool.num_free() == 0);
  pool.release(page);
  CHECK(pool.num_free() == 1);
  pool.check();
}

TEST_CASE("random admissions and releases: pages are never held twice, and never lost") {
  std::mt19937 random(1);
  KvCache cache(13, 4);
  std::vector<Sequence> sequences(8);
  std::vector<int> wanted(8, 0);
  for (int step = 0; step < 20000; ++step) {
    const size_t i = random() % sequences.size();
    Sequence& s = sequences[i];
    if (wanted[i] == 0) {
      const int positions = 1 + static_cast<int>(random() % 40);
      const int before = cache.num_available();
      const bool fits = (positions + 3) / 4 <= before;
      REQUIRE(cache.admit(s, positions) == fits);
      if (fits) wanted[i] = positions;
    } else if (random() % 3 == 0) {
      cache.release(s);
      wanted[i] = 0;
    } else {
      cache.extend(s.table, 1 + static_cast<int>(random() % static_cast<unsigned>(wanted[i])));
    }
    std::vector<Sequence*> all;
    std::set<PageId> held;
    size_t count = 0;
    for (Sequence& each : sequences) {
      all.push_back(&each);
      held.insert(each.table.pages.begin(), each.table.pages.end());
      count += each.table.pages.size();
    }
    REQUIRE(held.size() == count);
    REQUIRE(cache.num_free() == 13 - static_cast<int>(count));
    cache.check_integrity(all);
  }
}

}  // namespace
}  // namespace precast
