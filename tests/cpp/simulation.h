// Requests through scheduler, cache and counting model, step by step, without threads or a clock: every schedule can be
// replayed, and the rules that docs/scheduling.md states are checked while it runs.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/core/counting_backend.h"
#include "runtime/core/kv_cache.h"
#include "runtime/core/scheduler.h"

namespace precast {

struct Asked {
  std::vector<TokenId> prompt;
  int32_t max_tokens = 1;
  int32_t priority = 0;
  int32_t cache_priority = 35;
  std::optional<std::string> key = "";
  int32_t arrival = 0;        // the step before which it comes
  int32_t cancel_after = -1;  // that many steps later it goes; −1: it stays
  bool prompt_logits = false;
};

struct Answer {
  std::vector<TokenId> tokens;
  std::map<int32_t, TokenId> prompt_best;  // the most likely token after each position of the prompt, when asked for
  bool finished = false;
  bool cancelled = false;
  int32_t admitted_at = -1, finished_at = -1;  // steps
  int32_t cached = 0;
  int32_t pauses = 0;
};

struct SimulationConfig {
  ModelLimits limits;
  std::vector<int32_t> num_pages;
  SchedulerConfig scheduler;
  int32_t range = 0;  // CountingConfig::range
};

class Simulation {
  const SimulationConfig config_;
  const std::vector<Asked> asked_;

 public:
  Simulation(const SimulationConfig& config, std::vector<Asked> asked)
      : config_(config),
        asked_(std::move(asked)),
        answers(asked_.size()),
        cache(config.limits, config.num_pages),
        scheduler(config.limits, config.scheduler, cache),
        backend_({.limits = config.limits, .range = config.range}) {
    backend_.allocate_pages(config.num_pages);
    logits_.resize(static_cast<size_t>(config.limits.max_logit_rows()) * static_cast<size_t>(config.limits.vocab_size));
  }

  // To the end of all requests. Every rule is a REQUIRE.
  void run() {
    constexpr int32_t kMaxSteps = 100000;
    while (num_finished_ < asked_.size()) {
      REQUIRE(step_ < kMaxSteps);
      arrivals();
      admit();
      const bool any = schedule();
      if (!any) REQUIRE(scheduler.num_running() == 0);
      if (!any && arrived_ == asked_.size()) REQUIRE(scheduler.empty());
      if (any) run_step();
      ++step_;
    }
    REQUIRE(scheduler.empty());
    cache.check_integrity({});
    for (int32_t g = 0; g < cache.num_groups(); ++g) REQUIRE(cache.num_available(g) == cache.num_pages(g));
  }

  std::vector<Answer> answers;
  KvCache cache;
  Scheduler scheduler;
  int64_t rows = 0;  // run in all steps
  int32_t steps() const { return step_; }
  // Called with each batch before it runs.
  void (*watch)(StepBatch&) = nullptr;

 private:
  void arrivals() {
    for (; arrived_ < asked_.size() && asked_[arrived_].arrival <= step_; ++arrived_) {
      const Asked& asked = asked_[arrived_];
      auto s = std::make_unique<Sequence>();
      s->id = arrived_;
      s->tokens = asked.prompt;
      s->num_prompt = static_cast<int32_t>(asked.prompt.size());
      s->max_length = s->num_prompt + asked.max_tokens;
      s->priority = asked.priority;
      s->cache_priority = asked.cache_priority;
      s->cache_key = asked.key;
      s->prompt_logits = asked.prompt_logits;
      scheduler.add(s.get());
      live_[arrived_] = std::move(s);
    }
    std::vector<size_t> gone;
    for (const auto& [i, s] : live_) {
      if (asked_[i].cancel_after >= 0 && asked_[i].arrival + asked_[i].cancel_after <= step_) gone.push_back(i);
    }
    for (const size_t i : gone) {
      answers[i].cancelled = true;
      finish(*live_.at(i));
    }
  }

  void admit() {
    const int32_t running = scheduler.num_running();
    const std::vector<Sequence*>& admitted = scheduler.admit();
    if (!admitted.empty()) last_admission_ = step_;
    if (config_.scheduler.policy == SchedulerPolicy::static_batch) REQUIRE((admitted.empty() || running == 0));
    for (const Sequence* s : admitted) {
      REQUIRE(s->num_overtaken <= config_.scheduler.max_overtakes);
      Answer& answer = answers[s->id];
      if (answer.admitted_at < 0) {
        answer.admitted_at = step_;
        answer.cached = s->num_cached;
      }
    }
  }

  bool schedule() {
    const std::vector<Sequence*> before = scheduler.running();
    const uint64_t pauses = scheduler.num_pauses();
    const bool any = scheduler.schedule(batch_);
    scheduler.check();
    if (scheduler.num_pauses() > pauses) {
      REQUIRE(config_.scheduler.policy == SchedulerPolicy::max_utilization);
      // Who started first goes on, who started last is paused, and not before a page's worth of steps after anybody
      // came in.
      const std::vector<Sequence*>& after = scheduler.running();
      REQUIRE(!after.empty());
      REQUIRE(std::equal(after.begin(), after.end(), before.begin()));
      REQUIRE(step_ - last_admission_ >= config_.limits.page_tokens);
    }
    return any;
  }

  void run_step() {
    if (watch != nullptr) watch(batch_);
    backend_.run(batch_, logits_.data());
    rows += static_cast<int64_t>(batch_.tokens.size());
    const std::vector<LogitRow> wanted(scheduler.logit_rows().begin(), scheduler.logit_rows().end());
    scheduler.complete();
    const float* row = logits_.data();
    for (const LogitRow& want : wanted) {
      const auto best = static_cast<TokenId>(std::max_element(row, row + config_.limits.vocab_size) - row);
      row += config_.limits.vocab_size;
      take(*want.sequence, want.position, best);
    }
  }

  void take(Sequence& s, int32_t position, TokenId best) {
    Answer& answer = answers[s.id];
    if (position < s.num_prompt - 1) {
      REQUIRE(answer.prompt_best.emplace(position, best).second);  // once, also when it is computed again after a pause
      return;
    }
    REQUIRE(position == s.length() - 1);
    answer.tokens.push_back(best);
    if (static_cast<int32_t>(answer.tokens.size()) < s.max_length - s.num_prompt) return scheduler.append(s, best);
    finish(s);
  }

  void finish(Sequence& s) {
    Answer& answer = answers[s.id];
    REQUIRE_FALSE(answer.finished);
    answer.finished = true;
    answer.finished_at = step_;
    answer.pauses = s.num_pauses;
    ++num_finished_;
    scheduler.finish(s);
    live_.erase(s.id);
  }

  CountingBackend backend_;
  std::vector<float> logits_;
  StepBatch batch_;
  std::map<size_t, std::unique_ptr<Sequence>> live_;
  size_t arrived_ = 0, num_finished_ = 0;
  int32_t step_ = 0, last_admission_ = 0;
};

// The request alone: no other, no cache, room for all of it.
inline Answer alone(const SimulationConfig& config, Asked asked) {
  SimulationConfig roomy = config;
  const int32_t pages = static_cast<int32_t>(asked.prompt.size()) + asked.max_tokens;
  roomy.num_pages.assign(config.limits.groups.size(), pages);
  roomy.scheduler = {};
  asked.key = std::nullopt;
  asked.arrival = 0;
  asked.cancel_after = -1;
  Simulation simulation(roomy, {asked});
  simulation.run();
  return simulation.answers[0];
}

}  // namespace precast
