#include <doctest/doctest.h>
#include <poll.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "runtime/core/counting_backend.h"
#include "runtime/core/executor.h"

namespace precast {
namespace {

CountingConfig small() {
  CountingConfig config;
  config.limits = {64, 4, 16, 64, 8};
  return config;
}

ExecutorConfig pool(int32_t pages) {
  ExecutorConfig config;
  config.num_pages = {pages};
  return config;
}

bool readable(const Executor& executor, int milliseconds) {
  pollfd fd = {executor.fileno(), POLLIN, 0};
  return ::poll(&fd, 1, milliseconds) == 1;
}

struct Whole {
  std::vector<TokenId> tokens;
  FinishReason reason = FinishReason::none;
  std::string error;
};

void collect(Executor& executor, std::map<RequestId, Whole>& outputs, size_t max = 0) {
  for (OutputDelta& delta : executor.poll(max)) {
    Whole& whole = outputs[delta.id];
    CHECK(whole.reason == FinishReason::none);
    whole.tokens.insert(whole.tokens.end(), delta.token_ids.begin(), delta.token_ids.end());
    whole.reason = delta.finish_reason;
    whole.error = delta.error;
  }
}

void wait_for(Executor& executor, std::map<RequestId, Whole>& outputs, size_t finished) {
  const auto count = [&] {
    return static_cast<size_t>(
        std::ranges::count_if(outputs, [](auto& o) { return o.second.reason != FinishReason::none; }));
  };
  while (count() < finished) {
    REQUIRE(readable(executor, 60000));
    collect(executor, outputs, 3);
  }
}

SamplingParams length(int32_t max_tokens) {
  SamplingParams p;
  p.max_tokens = max_tokens;
  p.seed = 9;
  return p;
}

TEST_CASE("requests of several threads, some cancelled, each finish once and leave the pool empty") {
  Executor executor(std::make_shared<CountingBackend>(small()), pool(12), nullptr);
  std::map<RequestId, Whole> outputs;
  constexpr int kThreads = 4, kEach = 50;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&executor, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < kEach; ++i) {
        const RequestId id = executor.submit(std::vector<TokenId>(1 + random() % 30, t), length(1 + random() % 30));
        if (random() % 4 == 0) executor.cancel(id);
        if (random() % 8 == 0) executor.cancel(id / 2);
        executor.stats();
      }
    });
  }
  wait_for(executor, outputs, kThreads * kEach);
  for (std::thread& thread : threads) thread.join();
  CHECK(outputs.size() == kThreads * kEach);
  executor.close(true, 60);
  const ExecutorStats stats = executor.stats();
  CHECK(stats.running == 0);
  CHECK(stats.waiting == 0);
  CHECK(stats.available_pages == 12);
  CHECK(stats.finished == kThreads * kEach);
  CHECK_FALSE(readable(executor, 0));
}

TEST_CASE("a request alone and among others has the same tokens") {
  const auto run = [](size_t others) {
    Executor executor(std::make_shared<CountingBackend>(small()), pool(16), nullptr);
    std::map<RequestId, Whole> outputs;
    const RequestId id =
        executor.submit({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19}, length(20));
    for (size_t i = 0; i < others; ++i) executor.submit(std::vector<TokenId>(1 + i, 5), length(10));
    wait_for(executor, outputs, others + 1);
    return outputs[id].tokens;
  };
  const auto alone = run(0);
  CHECK(alone.size() == 20);
  CHECK(run(7) == alone);
}

TEST_CASE("what is cancelled in a pause never runs, however soon the pause ends") {
  Executor executor(std::make_shared<CountingBackend>(small()), pool(12), nullptr);
  std::map<RequestId, Whole> outputs;
  for (size_t i = 1; i <= 10000; ++i) {
    executor.pause();
    const RequestId id = executor.submit({1, 2, 3}, length(4));
    executor.cancel(id);
    executor.resume();
    wait_for(executor, outputs, i);
    CHECK(outputs[id].tokens.empty());
  }
}

TEST_CASE("a failing backend answers everybody with the cause, and takes nothing more") {
  CountingConfig config = small();
  config.fail_at_step = 3;
  Executor executor(std::make_shared<CountingBackend>(config), pool(8), nullptr);
  std::map<RequestId, Whole> outputs;
  size_t accepted = 0;
  try {
    for (; accepted < 20; ++accepted) executor.submit({1, 2, 3}, length(30));
  } catch (const RequestError&) {  // it may fail while requests still come
  }
  wait_for(executor, outputs, accepted);
  CHECK(outputs.size() == accepted);
  for (const auto& [id, whole] : outputs) {
    CHECK(whole.reason == FinishReason::error);
    CHECK(whole.error == "the counting backend was told to fail");
  }
  CHECK_THROWS_AS(executor.submit({1}, length(1)), RequestError);
  CHECK_FALSE(executor.stats().alive);
  executor.close(true, 60);
}

TEST_CASE("NaN logits end that request alone") {
  CountingConfig config = small();
  config.poison_token = 63;
  Executor executor(std::make_shared<CountingBackend>(config), pool(8), nullptr);
  std::map<RequestId, Whole> outputs;
  const RequestId bad = executor.submit({1, 63}, length(5));
  SamplingParams p = length(5);
  p.temperature = 0;
  const RequestId good = executor.submit({1, 2}, p);
  wait_for(executor, outputs, 2);
  CHECK(outputs[bad].reason == FinishReason::error);
  CHECK(outputs[bad].tokens.empty());
  CHECK(outputs[good].reason == FinishReason::length);
}

TEST_CASE("a shutdown answers who runs, who waits, and who has just come") {
  for (const bool drain : {false, true}) {
    CountingConfig config = small();
    config.step_seconds = 0.02;
    Executor executor(std::make_shared<CountingBackend>(config), pool(8), nullptr);
    std::map<RequestId, Whole> outputs;
    for (int i = 0; i < 10; ++i) executor.submit({1, 2, 3}, length(60));
    std::thread other([&] { executor.close(drain, 0.01); });  // not enough to drain
    executor.close(drain, 0.01);
    other.join();
    collect(executor, outputs);
    CHECK(outputs.size() == 10);
    size_t cancelled = 0;
    for (const auto& [id, whole] : outputs) {
      CHECK(whole.reason != FinishReason::none);
      cancelled += whole.reason == FinishReason::cancelled ? 1 : 0;
    }
    CHECK(cancelled > 0);
    CHECK_THROWS_AS(executor.submit({1}, length(1)), RequestError);
  }
}

TEST_CASE("a drain lets requests finish") {
  Executor executor(std::make_shared<CountingBackend>(small()), pool(8), nullptr);
  std::map<RequestId, Whole> outputs;
  for (int i = 0; i < 10; ++i) executor.submit({1, 2, 3}, length(20));
  executor.close(true, 60);
  collect(executor, outputs);
  for (const auto& [id, whole] : outputs) CHECK(whole.tokens.size() == 20);
  CHECK(outputs.size() == 10);
}

TEST_CASE("with max_tokens 0 there is an answer without tokens") {
  Executor executor(std::make_shared<CountingBackend>(small()), pool(8), nullptr);
  std::map<RequestId, Whole> outputs;
  const RequestId id = executor.submit({1, 2, 3}, length(0));
  wait_for(executor, outputs, 1);
  CHECK(outputs[id].reason == FinishReason::length);
  CHECK(outputs[id].tokens.empty());
}

}  // namespace
}  // namespace precast
