#include <doctest/doctest.h>

#include <memory>
#include <random>

#include "runtime/core/check.h"
#include "runtime/core/scheduler.h"
#include "runtime/core/step_check.h"

namespace precast {
namespace {

constexpr int32_t kPage = 32;

ModelLimits limits(int32_t batch, int32_t tokens, int32_t seq_len = 512) {
  return {100, batch, tokens, seq_len, kPage};
}

ModelLimits roomy() { return limits(8, 256); }

std::unique_ptr<Sequence> sequence(RequestId id, int32_t prompt, int32_t max_length) {
  auto s = std::make_unique<Sequence>();
  s->id = id;
  s->tokens.assign(static_cast<size_t>(prompt), static_cast<TokenId>(id));
  s->num_prompt = prompt;
  s->max_length = max_length;
  return s;
}

// What a step has of each sequence: {rows, position after it}.
std::vector<std::pair<int32_t, int32_t>> shares(const StepBatch& batch) {
  std::vector<std::pair<int32_t, int32_t>> out;
  for (const StepSequence& s : batch.sequences) out.emplace_back(s.num_rows, s.first_position + s.num_rows);
  return out;
}

using Shares = std::vector<std::pair<int32_t, int32_t>>;

TEST_CASE("decode comes first, prompts fill the rest in chunks that end on page borders") {
  KvCache cache(roomy(), {100});
  Scheduler scheduler(limits(8, 80), {}, cache);
  StepBatch batch;
  auto a = sequence(1, 10, 100), b = sequence(2, 100, 200), c = sequence(3, 5, 100);
  scheduler.add(a.get());
  scheduler.admit();
  REQUIRE(scheduler.schedule(batch));
  scheduler.complete();
  scheduler.append(*a, 7);
  scheduler.add(b.get());
  scheduler.add(c.get());
  scheduler.admit();
  // 79 rows are left: b may go to 79 and ends at 64; 15 are left, which c fits in.
  REQUIRE(scheduler.schedule(batch));
  CHECK(shares(batch) == Shares{{1, 11}, {64, 64}, {5, 5}});
  CHECK(batch.logit_rows == std::vector<int32_t>{0, 69});
  CHECK(scheduler.logit_rows()[1].sequence == c.get());
  scheduler.complete();
  scheduler.append(*a, 7);
  scheduler.append(*c, 7);
  REQUIRE(scheduler.schedule(batch));
  CHECK(shares(batch) == Shares{{1, 12}, {1, 6}, {36, 100}});
  scheduler.complete();
  for (auto* s : {a.get(), b.get(), c.get()}) scheduler.finish(*s);
  CHECK(scheduler.empty());
  CHECK(cache.num_available(0) == 100);
}

TEST_CASE("equal_progress gives each prompt a page in turn, who has fewest first; first_come all to the first") {
  for (const PrefillOrder order : {PrefillOrder::first_come, PrefillOrder::equal_progress}) {
    KvCache cache(roomy(), {100});
    Scheduler scheduler(limits(8, 170), {.prefill_order = order}, cache);
    StepBatch batch;
    auto a = sequence(1, 200, 201), b = sequence(2, 200, 201), c = sequence(3, 40, 41);
    for (auto* s : {a.get(), b.get(), c.get()}) scheduler.add(s);
    scheduler.admit();
    REQUIRE(scheduler.schedule(batch));
    CHECK(shares(batch) ==
          (order == PrefillOrder::first_come ? Shares{{160, 160}} : Shares{{64, 64}, {64, 64}, {40, 40}}));
    scheduler.complete();
    if (c->num_computed == c->length()) scheduler.finish(*c);
    REQUIRE(scheduler.schedule(batch));
    CHECK(shares(batch) ==
          (order == PrefillOrder::first_come ? Shares{{40, 200}, {128, 128}} : Shares{{96, 160}, {64, 128}}));
    for (auto* s : {a.get(), b.get(), c.get()}) scheduler.finish(*s);
  }
}

TEST_CASE("with max_overtakes 0 the first in the queue waits for pages, and nobody overtakes it") {
  KvCache cache(roomy(), {4});
  Scheduler scheduler(limits(8, 256), {.max_overtakes = 0}, cache);
  auto a = sequence(1, 40, 65), b = sequence(2, 40, 97), c = sequence(3, 1, 2);  // 2, 3, 1 pages
  for (auto* s : {a.get(), b.get(), c.get()}) scheduler.add(s);
  CHECK(scheduler.admit().size() == 1);
  CHECK(scheduler.num_waiting() == 2);
  scheduler.finish(*a);
  CHECK(scheduler.admit().size() == 2);
  scheduler.finish(*b);
  scheduler.finish(*c);
}

TEST_CASE("all for whom there is room are admitted at once, however many candidates are considered at a time") {
  constexpr auto kMany = static_cast<int32_t>(2 * RequestQueue::kLookahead + 8);
  const ModelLimits many = limits(kMany, 256);
  KvCache cache(many, {kMany});
  Scheduler scheduler(many, {}, cache);
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (RequestId id = 1; id <= kMany; ++id) scheduler.add(sequences.emplace_back(sequence(id, 1, 2)).get());
  CHECK(scheduler.admit().size() == kMany);
  for (auto& s : sequences) scheduler.finish(*s);
}

TEST_CASE("a sequence can be finished in every state") {
  KvCache cache(roomy(), {8});
  Scheduler scheduler(limits(1, 64), {}, cache);
  StepBatch batch;
  auto running = sequence(1, 100, 120), waiting = sequence(2, 100, 120);
  scheduler.add(running.get());
  scheduler.add(waiting.get());
  scheduler.admit();
  REQUIRE(scheduler.schedule(batch));
  scheduler.complete();
  CHECK(running->state == SequenceState::prefill);
  CHECK(running->num_computed == 64);
  scheduler.finish(*waiting);
  scheduler.finish(*running);
  CHECK(scheduler.empty());
  CHECK(cache.num_available(0) == 8);
}

TEST_CASE("a budget below one page is refused") {
  KvCache cache(roomy(), {8});
  CHECK_THROWS_AS(Scheduler(limits(4, 64), {.max_num_tokens = kPage - 1}, cache), EngineError);
  CHECK_THROWS_AS(Scheduler(limits(4, 64), {.max_overtakes = -1}, cache), EngineError);
  CHECK_NOTHROW(Scheduler(limits(4, 64), {.max_num_tokens = kPage}, cache));
}

// guaranteed_no_evict, fcfs and first_come as docs/scheduling.md words them, written again in the plainest way: who has
// how many rows in the next step.
struct Naive {
  struct Item {
    RequestId id;
    int32_t prompt, max_length, length, computed, pages;
    int32_t overtaken = 0;
  };
  int32_t free_pages, budget, max_running, max_overtakes;
  std::vector<Item> waiting;
  std::vector<Item> running;

  // Admits one; false when nobody can come in.
  bool admit_one() {
    if (static_cast<int32_t>(running.size()) == max_running) return false;
    for (size_t i = 0; i < waiting.size() && i < RequestQueue::kLookahead; ++i) {
      if (waiting[i].pages <= free_pages) {
        for (size_t j = 0; j < i; ++j) ++waiting[j].overtaken;
        free_pages -= waiting[i].pages;
        running.push_back(waiting[i]);
        waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(i));
        return true;
      }
      if (waiting[i].overtaken >= max_overtakes) return false;
    }
    return false;
  }

  std::vector<std::pair<RequestId, int32_t>> step() {
    while (admit_one()) {
    }
    std::vector<std::pair<RequestId, int32_t>> rows;
    int32_t left = budget;
    for (Item& item : running) {
      if (item.computed < item.prompt) continue;
      rows.emplace_back(item.id, 1);
      ++item.computed;
      --left;
    }
    for (Item& item : running) {
      if (item.computed >= item.prompt || item.length > item.prompt) continue;
      int32_t n = item.prompt - item.computed;
      while (n > 0 && (n > left || (item.computed + n < item.prompt && (item.computed + n) % kPage != 0))) --n;
      if (n == 0) continue;
      rows.emplace_back(item.id, n);
      item.computed += n;
      left -= n;
    }
    for (size_t i = running.size(); i-- > 0;) {
      Item& item = running[i];
      if (item.computed < item.length) continue;
      if (++item.length < item.max_length) continue;
      free_pages += item.pages;
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return rows;
  }
};

void simulate(unsigned seed) {
  std::mt19937 random(seed);
  const auto pick = [&](int32_t low, int32_t high) { return low + static_cast<int32_t>(random() % (high - low + 1u)); };
  const int32_t pages = pick(2, 12), budget = pick(kPage, 100), batch_size = pick(1, 6), overtakes = pick(0, 3);
  KvCache cache(roomy(), {pages});
  Scheduler scheduler(limits(batch_size, budget), {.max_overtakes = overtakes}, cache);
  Naive naive{pages, budget, std::min(batch_size, budget - kPage + 1), overtakes, {}, {}};
  std::vector<std::unique_ptr<Sequence>> all;
  StepBatch batch;
  int32_t to_come = 20;
  while (to_come > 0 || !scheduler.empty()) {
    for (; to_come > 0 && pick(0, 2) == 0; --to_come) {
      const int32_t max_length = pick(2, pages * kPage + 1), prompt = pick(1, max_length - 1);
      all.push_back(sequence(static_cast<RequestId>(to_come), prompt, max_length));
      scheduler.add(all.back().get());
      naive.waiting.push_back({all.back()->id, prompt, max_length, prompt, 0, (max_length - 1 + kPage - 1) / kPage});
    }
    scheduler.admit();
    const bool any = scheduler.schedule(batch);
    scheduler.check();
    std::vector<std::pair<RequestId, int32_t>> rows;
    for (const StepSequence& s : batch.sequences) {
      rows.emplace_back(static_cast<RequestId>(batch.tokens[static_cast<size_t>(s.first_row)]), s.num_rows);
    }
    REQUIRE(rows == naive.step());
    REQUIRE(any == !rows.empty());
    REQUIRE((any || scheduler.empty()));
    if (!any) continue;
    check_step(batch, limits(batch_size, budget), {pages});
    const std::vector<LogitRow> sampled(scheduler.logit_rows().begin(), scheduler.logit_rows().end());
    scheduler.complete();
    for (const LogitRow& row : sampled) {
      if (row.sequence->length() + 1 < row.sequence->max_length) {
        scheduler.append(*row.sequence, static_cast<TokenId>(row.sequence->id));
      } else {
        scheduler.finish(*row.sequence);
      }
    }
  }
  REQUIRE(cache.num_available(0) == pages);
}

TEST_CASE("every step is what the plainest form of the policy says") {
  for (unsigned seed = 0; seed < 300; ++seed) simulate(seed);
}

}  // namespace
}  // namespace precast
