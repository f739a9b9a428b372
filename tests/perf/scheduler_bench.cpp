// What scheduler and cache cost outside the model: scheduler_bench
//
// Prints the time to find and to admit an 8,000-token prefix among many others, and per step with 64 running and 1,000
// waiting sequences the time of admit + schedule + complete + append: of steps that only decode, and of all, with
// prompts and entries among them. No model runs.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "runtime/core/scheduler.h"

namespace {

using namespace precast;

constexpr int32_t kVocab = 32000, kRunning = 64, kWaiting = 1000;

double microseconds(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

void print(const char* what, std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const auto at = [&](double share) {
    return times[static_cast<size_t>(share * static_cast<double>(times.size() - 1))];
  };
  std::printf("%-58s median %7.1f us   p99 %7.1f us   of %zu\n", what, at(0.5), at(0.99), times.size());
}

std::vector<TokenId> random_tokens(std::mt19937& random, size_t count) {
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % kVocab);
  return tokens;
}

std::unique_ptr<Sequence> sequence(RequestId id, std::vector<TokenId> tokens, int32_t max_tokens) {
  auto s = std::make_unique<Sequence>();
  s->id = id;
  s->num_prompt = static_cast<int32_t>(tokens.size());
  s->max_length = s->num_prompt + max_tokens;
  s->tokens = std::move(tokens);
  s->cache_key = "";
  return s;
}

ModelLimits limits(std::vector<KvGroup> groups) { return {kVocab, kRunning, 2048, 32768, 32, std::move(groups)}; }

// 64 prefixes of 8,000 tokens are cached, which begin alike in pairs for some pages.
void match(const char* what, std::vector<KvGroup> groups) {
  std::mt19937 random(1);
  const std::vector<int32_t> pages(groups.size(), 40000);
  KvCache cache(limits(std::move(groups)), pages);
  std::vector<std::vector<TokenId>> texts;
  for (int i = 0; i < 64; ++i) {
    texts.push_back(random_tokens(random, 8001));
    if (i % 2 == 1) std::copy_n(texts[static_cast<size_t>(i) - 1].begin(), 1000, texts.back().begin());
    auto s = sequence(0, texts.back(), 10);
    cache.admit(*s, 8001);
    s->state = SequenceState::prefill;
    cache.extend(*s, 8001);
    cache.computed(*s, 8001);
    cache.keep(*s);
    cache.release(*s);
  }
  std::vector<double> found, admitted;
  for (int i = 0; i < 2000; ++i) {
    auto s = sequence(0, texts[random() % texts.size()], 10);
    auto begin = std::chrono::steady_clock::now();
    const int32_t n = cache.cached(*s);
    found.push_back(microseconds(begin));
    if (n != 8000) std::printf("found %d of 8000 tokens\n", n);
    begin = std::chrono::steady_clock::now();
    cache.admit(*s, 8010);
    cache.release(*s);
    admitted.push_back(microseconds(begin));
  }
  std::printf("8,000-token prefix, %s\n", what);
  print("  find", found);
  print("  find, admit and release", admitted);
}

// pages_each: pages of full attention in the pool for each of kRunning sequences.
void steps(const char* what, SchedulerConfig config, int32_t pages_each) {
  std::mt19937 random(2);
  KvCache cache(limits({{0, 3, 1}, {512, 15, 5}}), {kRunning * pages_each, kRunning * 20});
  Scheduler scheduler(limits({{0, 3, 1}, {512, 15, 5}}), config, cache);
  std::vector<std::unique_ptr<Sequence>> all;
  const std::vector<TokenId> system = random_tokens(random, 400);
  const auto arrive = [&] {
    std::vector<TokenId> tokens = random_tokens(random, 100 + random() % 1500);
    if (random() % 2 == 0) std::copy_n(system.begin(), std::min(tokens.size(), system.size()), tokens.begin());
    all.push_back(sequence(all.size(), std::move(tokens), 1 + static_cast<int32_t>(random() % 400)));
    all.back()->priority = static_cast<int32_t>(random() % 3);
    scheduler.add(all.back().get());
  };
  StepBatch batch;
  std::vector<double> decode, every;
  for (int step = 0; step < 4000; ++step) {
    while (scheduler.num_waiting() < kWaiting) arrive();
    const auto begin = std::chrono::steady_clock::now();
    scheduler.admit();
    scheduler.schedule(batch);
    double time = microseconds(begin);
    const std::vector<LogitRow> rows(scheduler.logit_rows().begin(), scheduler.logit_rows().end());
    std::vector<Sequence*> ended;
    const auto again = std::chrono::steady_clock::now();
    scheduler.complete();
    for (const LogitRow& row : rows) {
      if (row.sequence->length() + 1 < row.sequence->max_length) {
        scheduler.append(*row.sequence, 7);
      } else {
        scheduler.finish(*row.sequence);
        ended.push_back(row.sequence);
      }
    }
    time += microseconds(again);
    for (Sequence* s : ended) all[s->id].reset();
    if (step < 500) continue;  // the pool fills up
    every.push_back(time);
    const bool only_decode = batch.tokens.size() == batch.sequences.size() && ended.empty();
    if (only_decode) decode.push_back(time);
  }
  std::printf("%d waiting, %zu running at the end: %s\n", kWaiting, scheduler.running().size(), what);
  if (!decode.empty()) print("  steps of decode alone", decode);
  print("  all steps", every);
}

}  // namespace

int main() {
  match("full attention", {{0, 1, 1}});
  match("full and windowed", {{0, 1, 1}, {512, 1, 1}});
  for (const auto policy : {SchedulerPolicy::guaranteed_no_evict, SchedulerPolicy::max_utilization}) {
    const char* name = policy == SchedulerPolicy::max_utilization ? "max_utilization" : "guaranteed_no_evict";
    const std::pair<const char*, RequestOrder> orders[] = {
        {"fcfs", RequestOrder::fcfs}, {"priority", RequestOrder::priority}, {"cache_aware", RequestOrder::cache_aware}};
    for (const auto& [order_name, order] : orders) {
      for (const int32_t pages_each : {33, 20}) {
        const std::string what = std::string(name) + ", " + order_name + (pages_each < 33 ? ", short of pages" : "");
        steps(what.c_str(), {.policy = policy, .request_order = order}, pages_each);
      }
    }
  }
  return 0;
}
