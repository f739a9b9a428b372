#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "runtime/core/philox.h"
#include "runtime/core/sampler.h"

namespace precast {
namespace {

TEST_CASE("Philox4x32-10 gives the paper's known answers") {
  using Four = std::array<uint32_t, 4>;
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const uint32_t f = 0xffffffff;
  CHECK(philox4x32({f, f, f, f}, {f, f}) == Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("exp_nonpositive stays within 1e-6 of exp") {
  double worst = 0;
  for (int i = 0; i <= 870000; ++i) {
    const float x = -static_cast<float>(i) * 1e-4f;
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(exp_nonpositive(x) / exact - 1));
  }
  CHECK(worst < 1e-6);
  CHECK(exp_nonpositive(-std::numeric_limits<float>::infinity()) < 1e-37f);
}

// The meaning in sampler.h with a full sort.
TokenId naive_sample(const std::vector<float>& logits, const SamplingParams& p, uint64_t random) {
  const size_t v = logits.size();
  std::vector<size_t> ranked(v);
  std::iota(ranked.begin(), ranked.end(), size_t{0});
  std::stable_sort(ranked.begin(), ranked.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (p.temperature < 1e-5) return static_cast<TokenId>(ranked[0]);
  const float max = logits[ranked[0]];
  const auto inverse = static_cast<float>(1.0 / p.temperature);
  std::vector<uint64_t> weight(v);
  for (size_t i = 0; i < v; ++i) {
    weight[i] = static_cast<uint64_t>(std::ldexp(exp_nonpositive(-((max - logits[i]) * inverse)), 40));
  }
  const auto sum = [&] {
    return std::accumulate(ranked.begin(), ranked.end(), uint64_t{0},
                           [&](uint64_t s, size_t i) { return s + weight[i]; });
  };
  if (p.top_k > 0) ranked.resize(std::min(v, static_cast<size_t>(p.top_k)));
  if (p.top_p < 1) {
    const auto need = static_cast<uint64_t>(std::ceil(p.top_p * static_cast<double>(sum())));
    uint64_t mass = 0;
    size_t n = 0;
    while (n < ranked.size() && mass < need) mass += weight[ranked[n++]];
    ranked.resize(std::max<size_t>(n, 1));
  }
  std::erase_if(ranked, [&](size_t i) { return static_cast<double>(weight[i]) < std::ldexp(p.min_p, 40); });
  auto target = static_cast<uint64_t>((static_cast<unsigned __int128>(random) * sum()) >> 64);
  std::sort(ranked.begin(), ranked.end());
  for (size_t i : ranked) {
    if (target < weight[i]) return static_cast<TokenId>(i);
    target -= weight[i];
  }
  return -1;
}

std::vector<float> random_logits(std::mt19937& random, size_t v) {
  std::normal_distribution<float> normal(0, 1);
  const float spread = std::array{0.0f, 0.01f, 1.0f, 4.0f, 30.0f, 1e6f}[random() % 6];
  const float step = std::array{0.0f, 0.5f, 4.0f}[random() % 3];  // coarse steps: ties
  std::vector<float> x(v);
  for (float& value : x) {
    value = normal(random) * spread;
    if (step > 0) value = std::round(value / step) * step;
  }
  return x;
}

TEST_CASE("selection gives what a full sort gives") {
  std::mt19937 random(3);
  for (int i = 0; i < 4000; ++i) {
    const size_t v = 1 + random() % (i % 10 == 0 ? 9000 : 300);
    std::vector<float> logits = random_logits(random, v);
    SamplingParams p;
    p.temperature = std::array{0.0, 1e-4, 0.3, 1.0, 2.0, 900.0}[random() % 6];
    p.top_k = std::array{0, 1, 2, 40, 1000}[random() % 5];
    p.top_p = std::array{1.0, 0.999999, 0.95, 0.5, 1e-9}[random() % 5];
    p.min_p = std::array{0.0, 0.0, 0.05, 1.0}[random() % 4];
    const uint64_t bits = random_bits(random(), 0, random());
    const TokenId expected = naive_sample(logits, p, bits);
    Sampler sampler(static_cast<int32_t>(v));
    const Sample got = sampler.sample(logits, p, bits, LogitsProcessors());
    CAPTURE(v);
    CAPTURE(p.temperature);
    CAPTURE(p.top_k);
    CAPTURE(p.top_p);
    CAPTURE(p.min_p);
    REQUIRE(got.error == nullptr);
    REQUIRE(got.token == expected);
  }
}

TEST_CASE("equal logits: the lowest id wins") {
  Sampler sampler(40);
  SamplingParams p;
  p.temperature = 0;
  p.logprobs = 3;
  std::vector<float> logits(40, -1.0f);
  logits[17] = logits[33] = 0.0f;
  logits[20] = -0.0f;
  const Sample s = sampler.sample(logits, p, 0, LogitsProcessors());
  CHECK(s.token == 17);
  REQUIRE(s.logprobs.top.size() == 3);
  CHECK(s.logprobs.top[1].token == 20);
  CHECK(s.logprobs.top[2].token == 33);
  std::fill(logits.begin(), logits.end(), 0.0f);
  p.temperature = 1;
  p.top_k = 5;
  for (uint32_t i = 0; i < 100; ++i)
    CHECK(sampler.sample(logits, p, random_bits(1, 0, i), LogitsProcessors()).token < 5);
}

TEST_CASE("draws follow the softmax") {
  const std::vector<float> logits = {0.0f, 1.0f, 2.0f, -1.0f, 0.5f};
  std::vector<int> counts(5);
  Sampler sampler(5);
  const SamplingParams p;
  constexpr int kDraws = 200000;
  for (uint32_t i = 0; i < kDraws; ++i) {
    std::vector<float> row = logits;
    ++counts[static_cast<size_t>(sampler.sample(row, p, random_bits(42, 0, i), LogitsProcessors()).token)];
  }
  double total = 0, chi_square = 0;
  for (float x : logits) total += std::exp(x);
  for (size_t i = 0; i < 5; ++i) {
    const double expected = std::exp(logits[i]) / total * kDraws;
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  CHECK(chi_square < 18.5);  // 4 degrees of freedom: exceeded once in 1,000 seeds
}

TEST_CASE("logprobs are a log-softmax of the row, whatever filters and forbidden tokens do") {
  std::mt19937 random(5);
  std::vector<float> logits = random_logits(random, 5000);
  for (float& x : logits) x = std::sin(static_cast<float>(random() % 1000)) * 9;
  long double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<long double>(x));
  const std::vector<float> before = logits;
  Sampler sampler(5000);
  SamplingParams p;
  p.temperature = 0.7;
  p.top_k = 50;
  p.logprobs = 2;
  const auto best = static_cast<TokenId>(std::max_element(before.begin(), before.end()) - before.begin());
  p.bad_words = {{best}};
  const Sample s = sampler.sample(logits, p, random_bits(1, 2, 3), LogitsProcessors(p, {}, {}));
  CHECK(s.token != best);
  CHECK(s.logprobs.top[0].token == best);
  CHECK(std::abs(s.logprobs.logprob - static_cast<double>(before[static_cast<size_t>(s.token)] - std::log(sum))) <
        1e-5);
}

TEST_CASE("a row without an answer is an error") {
  Sampler sampler(20);
  SamplingParams p;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const size_t at : {size_t{0}, size_t{19}}) {
      std::vector<float> logits(20, 1.0f);
      logits[at] = bad;
      const Sample s = sampler.sample(logits, p, 1, LogitsProcessors());
      CHECK(s.error != nullptr);
      CHECK(s.token == -1);
    }
  }
  std::vector<float> logits(20, 1.0f);
  std::vector<TokenId> all(20);
  std::iota(all.begin(), all.end(), 0);
  p.min_tokens = 1;
  CHECK(sampler.sample(logits, p, 1, LogitsProcessors(p, {}, all)).error != nullptr);
  std::vector<float> extremes(20, std::numeric_limits<float>::lowest());
  extremes[3] = std::numeric_limits<float>::max();
  p.logprobs = 1;
  const Sample s = sampler.sample(extremes, p, 1, LogitsProcessors());
  CHECK(s.token == 3);
  CHECK(std::isfinite(s.logprobs.logprob));
}

}  // namespace
}  // namespace precast
