#include <doctest/doctest.h>

#include <random>

#include "runtime/core/cache_key.h"
#include "runtime/core/counting_backend.h"
#include "runtime/core/prefixes.h"
#include "tests/cpp/engine_bytes.h"

namespace precast {
namespace {

ModelLimits limits() {
  return {.vocab_size = 64,
          .max_batch_size = 4,
          .max_num_tokens = 64,
          .max_seq_len = 256,
          .page_tokens = 4,
          .groups = {{0, 1, 32}, {6, 1, 32}}};
}

// Pages of a byte each, by their number: 1, 2, ….
std::vector<uint8_t> section(const std::vector<std::vector<TokenId>>& prompts, int num_pages) {
  ByteWriter w;
  w.number<uint32_t>(static_cast<uint32_t>(prompts.size()));
  for (const auto& prompt : prompts) {
    w.number<uint32_t>(static_cast<uint32_t>(prompt.size()));
    for (const TokenId token : prompt) w.number<int32_t>(token);
  }
  for (size_t g = 0; g < limits().groups.size(); ++g) {
    w.bytes.resize((w.bytes.size() + 4095) / 4096 * 4096);
    for (int page = 1; page <= num_pages; ++page) w.bytes.insert(w.bytes.end(), 32, static_cast<uint8_t>(page));
  }
  return w.bytes;
}

const std::vector<TokenId> kFirst = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
const std::vector<TokenId> kSecond = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17};

TEST_CASE("prefixes share the pages of what they have in common") {
  const std::vector<uint8_t> bytes = section({kFirst, kSecond}, 5);
  const Prefixes prefixes = read_prefixes(bytes, limits());
  CHECK(prefixes.num_pages == 5);
  CountingBackend backend({.limits = limits()});
  backend.allocate_pages({40, 40});
  KvCache cache(limits(), {40, 40});
  load_prefixes(prefixes, cache, backend);
  cache.check_integrity({});
  for (const auto& [prompt, last] : {std::pair{kFirst, 3}, std::pair{kSecond, 5}}) {
    Sequence s;
    s.cache_key = shared_cache_key(std::nullopt);
    s.tokens = prompt;
    s.tokens.push_back(63);
    CHECK(cache.cached(s) == static_cast<int32_t>(prompt.size()));
    REQUIRE(cache.admit(s, s.length()));
    for (int32_t g = 0; g < 2; ++g) {
      const PageId page = s.tables[static_cast<size_t>(g)].pages[prompt.size() / 4 - 1];
      CHECK(backend.page(g, page)[0] == last);
    }
    cache.release(s);
  }
}

TEST_CASE("a pool without room for the prefixes is refused") {
  const std::vector<uint8_t> bytes = section({kFirst, kSecond}, 5);
  const Prefixes prefixes = read_prefixes(bytes, limits());
  CountingBackend backend({.limits = limits()});
  backend.allocate_pages({4, 40});
  KvCache cache(limits(), {4, 40});
  CHECK_THROWS_AS(load_prefixes(prefixes, cache, backend), EngineError);
}

TEST_CASE("a damaged section of prefixes is an error or holds together") {
  const std::vector<uint8_t> good = section({kFirst, kSecond}, 5);
  std::mt19937 random(3);
  for (int i = 0; i < 3000; ++i) {
    std::vector<uint8_t> bytes = good;
    for (int n = 1 + static_cast<int>(random() % 3); n > 0; --n) {
      bytes[random() % 140] = static_cast<uint8_t>(random() % 2 ? random() : random() % 20);
    }
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    try {
      const Prefixes prefixes = read_prefixes(bytes, limits());
      CountingBackend backend({.limits = limits()});
      backend.allocate_pages({40, 40});
      KvCache cache(limits(), {40, 40});
      load_prefixes(prefixes, cache, backend);
      cache.check_integrity({});
    } catch (const EngineError&) {
    }
  }
}

}  // namespace
}  // namespace precast
