// Every single allocation of the loop, of submit, of poll and of the constructor fails once; the loop's also with all
// that come after.
#include <doctest/doctest.h>
#include <poll.h>

#include <map>
#include <new>
#include <utility>

#include "failing_new.h"
#include "runtime/core/counting_backend.h"
#include "runtime/core/executor.h"

namespace precast {
namespace {

std::unique_ptr<Executor> make() {
  CountingConfig config;
  config.limits = {64, 4, 16, 64, 8};
  ExecutorConfig executor;
  executor.num_pages = {14};
  executor.kv_events = 100;
  executor.scheduler.policy = SchedulerPolicy::max_utilization;
  return std::make_unique<Executor>(std::make_shared<CountingBackend>(config), executor, nullptr);
}

struct Asked {
  std::vector<TokenId> prompt;
  SamplingParams params;
  RequestOptions options;
};

std::vector<Asked> every_kind() {
  std::vector<Asked> all(6);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].prompt.assign(3 + 5 * i, static_cast<TokenId>(i));
    all[i].params.max_tokens = 10;
    all[i].params.seed = i;
    all[i].params.stream = i % 2 == 0;
  }
  all[1].params.n = 3;
  all[2].params.n = 2;
  all[3].params.best_of = 2;
  all[4].params.prompt_logprobs = 2;
  all[4].params.logprobs = 3;
  all[4].options.cache_salt = "another";
  all[5].options.timeout_seconds = 1000;
  all[5].params.echo = true;
  all[5].params.repetition_penalty = 1.5;
  return all;
}

// How each output has ended, by request and index.
using Ends = std::map<std::pair<RequestId, int32_t>, FinishReason>;

void take(Executor& executor, Ends& ends, size_t& finished) {
  for (const OutputDelta& delta : executor.poll(0)) {
    FinishReason& end = ends[{delta.id, delta.index}];
    CHECK(end == FinishReason::none);
    end = delta.finish_reason;
    finished += delta.request_finished ? 1 : 0;
  }
}

void take_all(Executor& executor, Ends& ends, size_t requests) {
  for (size_t finished = 0; finished < requests;) {
    pollfd fd = {executor.fileno(), POLLIN, 0};
    REQUIRE(::poll(&fd, 1, 60000) == 1);
    take(executor, ends, finished);
  }
}

void check_ended(const Executor& executor, const Ends& ends, bool may_fail) {
  CHECK(ends.size() == 9);
  const bool alive = executor.stats().alive;
  CHECK(alive == executor.stats().error.empty());
  for (const auto& [output, end] : ends) {
    CHECK(end != FinishReason::none);
    if (alive || !may_fail) CHECK(end != FinishReason::error);
  }
}

TEST_CASE("whichever allocation of the loop fails, every output ends once, and health tells") {
  for (const bool alone : {true, false}) {
    for (int64_t number = 0;; ++number) {
      CAPTURE(number);
      std::unique_ptr<Executor> executor = make();
      executor->pause();
      std::vector<RequestId> ids;
      for (Asked& asked : every_kind()) {
        ids.push_back(executor->submit(std::move(asked.prompt), std::move(asked.params), std::move(asked.options)));
      }
      fail_at(Whose::others, number, alone);
      executor->cancel(ids[2]);
      executor->resume();
      Ends ends;
      take_all(*executor, ends, ids.size());
      const int64_t failures = stop_failing();
      check_ended(*executor, ends, failures > 0);
      if (!executor->stats().alive) {
        CHECK(executor->stats().error == "out of memory");
        CHECK(executor->stats().running == 0);
        CHECK_THROWS_AS(executor->submit({1}, {}), RequestError);
        CHECK_FALSE(executor->close(true, 60));
      } else {
        CHECK(executor->stats().running == 0);
        CHECK(executor->stats().available_pages == 14);
        CHECK(executor->close(true, 60));
      }
      size_t more = 0;
      take(*executor, ends, more);
      CHECK(more == 0);
      if (failures == 0) break;
    }
  }
}

TEST_CASE("whichever allocation of a shutdown fails, every output ends once") {
  for (int64_t number = 0;; ++number) {
    CAPTURE(number);
    std::unique_ptr<Executor> executor = make();
    executor->pause();
    size_t requests = 0;
    for (Asked& asked : every_kind()) {
      executor->submit(std::move(asked.prompt), std::move(asked.params), std::move(asked.options));
      ++requests;
    }
    fail_at(Whose::others, number, false);
    CHECK_FALSE(executor->close(false, 0));
    const int64_t failures = stop_failing();
    Ends ends;
    take_all(*executor, ends, requests);
    CHECK(ends.size() == 9);
    if (failures == 0) break;
  }
}

TEST_CASE("whichever allocation of submit or poll fails, that call throws and nothing else has changed") {
  for (int64_t number = 0;; ++number) {
    CAPTURE(number);
    std::unique_ptr<Executor> executor = make();
    Ends ends;
    std::vector<Asked> all = every_kind();
    int64_t failures = 0;
    for (const Asked& asked : all) {
      Asked copy = asked;
      fail_at(Whose::caller, number, true);
      try {
        executor->submit(std::move(copy.prompt), std::move(copy.params), std::move(copy.options));
        failures += stop_failing();
      } catch (const std::bad_alloc&) {
        failures += stop_failing();
        executor->submit(asked.prompt, asked.params, asked.options);
      }
    }
    for (size_t finished = 0; finished < all.size();) {
      pollfd fd = {executor->fileno(), POLLIN, 0};
      REQUIRE(::poll(&fd, 1, 60000) == 1);
      std::vector<OutputDelta> deltas;
      fail_at(Whose::caller, number, true);
      try {
        deltas = executor->poll(1);
        failures += stop_failing();
      } catch (const std::bad_alloc&) {
        failures += stop_failing();
        deltas = executor->poll(1);
      }
      for (const OutputDelta& delta : deltas) {
        FinishReason& end = ends[{delta.id, delta.index}];
        CHECK(end == FinishReason::none);
        end = delta.finish_reason;
        finished += delta.request_finished ? 1 : 0;
      }
    }
    check_ended(*executor, ends, false);
    CHECK(executor->stats().finished == all.size());
    CHECK(executor->stats().available_pages == 14);
    if (failures == 0) break;
  }
}

TEST_CASE("whichever allocation of the constructor fails, it throws") {
  for (int64_t number = 0;; ++number) {
    CAPTURE(number);
    fail_at(Whose::caller, number, true);
    std::unique_ptr<Executor> executor;
    try {
      executor = make();
    } catch (const std::bad_alloc&) {
    }
    const int64_t failures = stop_failing();
    CHECK((executor == nullptr) == (failures > 0));
    if (failures == 0) break;
  }
}

}  // namespace
}  // namespace precast
