#include "runtime/core/simulator.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "runtime/core/cache_key.h"
#include "runtime/core/check.h"

namespace precast {
namespace {

int32_t asked_tokens(const SimulatedRequest& request) { return std::max(request.max_tokens, request.output_tokens); }

// A token that no other request has.
TokenId own_token(size_t request) { return -1 - static_cast<TokenId>(request); }

// A request is not cancelled before it arrives.
double cancelled_at(const SimulatedRequest& request) { return std::max(request.cancelled, request.arrival); }

int32_t held_pages(const KvCache& cache, int32_t group) {
  return cache.num_pages(group) - cache.num_free(group) - cache.num_evictable(group);
}

}  // namespace

std::vector<TokenId> simulated_prompt(size_t request, int32_t num_tokens, int32_t num_shared, int32_t prefix) {
  std::vector<TokenId> prompt(static_cast<size_t>(num_tokens), own_token(request));
  std::fill_n(prompt.begin(), std::min(num_shared, num_tokens), prefix);
  return prompt;
}

Simulator::Simulator(const SimulatorConfig& config, std::vector<SimulatedRequest> requests)
    : config_(config),
      requests_(std::move(requests)),
      cache_(config_.limits, config_.num_pages),
      scheduler_(config_.limits, config_.scheduler, cache_),
      live_(requests_.size()) {
  if (config_.gather < 1) throw EngineError("gather must be at least 1");
  check_requests();
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (std::isfinite(requests_[i].cancelled)) by_cancellation_.push_back(i);
  }
  std::ranges::stable_sort(
      by_cancellation_, [this](size_t a, size_t b) { return cancelled_at(requests_[a]) < cancelled_at(requests_[b]); });
  result_.outputs.resize(requests_.size());
  result_.peak_pages.resize(config_.limits.groups.size());
}

void Simulator::check_requests() const {
  double last = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    const SimulatedRequest& r = requests_[i];
    const auto refuse = [i](const std::string& why) {
      throw RequestError("request " + std::to_string(i) + " of the workload " + why);
    };
    if (!std::isfinite(r.arrival) || r.arrival < last) refuse("arrives before the one before it, or at no time");
    last = r.arrival;
    if (r.prompt.empty() || r.output_tokens < 1) refuse("has no prompt, or no output");
    const int64_t length = static_cast<int64_t>(r.prompt.size()) + asked_tokens(r);
    if (length > config_.limits.max_seq_len) {
      refuse("has " + std::to_string(length) + " tokens with its output, and max_seq_len is " +
             std::to_string(config_.limits.max_seq_len));
    }
    if (length - 1 > cache_.max_positions()) {
      refuse("has " + std::to_string(length) + " tokens with its output, and the KV cache holds " +
             std::to_string(cache_.max_positions()) + " for one sequence");
    }
  }
}

Simulated Simulator::run() {
  while (finished_ < requests_.size()) {
    arrive();
    cancel();
    admit();
    if (scheduler_.schedule(batch_)) {
      run_step();
    } else {
      require(scheduler_.empty(), "there is a step while there are requests");
      if (finished_ < requests_.size()) now_ = std::max(now_, next_event());
    }
  }
  result_.pauses = static_cast<int64_t>(scheduler_.num_pauses());
  result_.evicted_pages = static_cast<int64_t>(cache_.num_evicted());
  return std::move(result_);
}

// When something comes that an idle scheduler waits for.
double Simulator::next_event() const {
  double next = std::numeric_limits<double>::infinity();
  if (!all_arrived()) next = requests_[arrived_].arrival;
  if (cancelled_ < by_cancellation_.size())
    next = std::min(next, cancelled_at(requests_[by_cancellation_[cancelled_]]));
  return next;
}

void Simulator::arrive() {
  while (!all_arrived() && requests_[arrived_].arrival <= now_) ++arrived_;
  const auto gather = static_cast<size_t>(config_.gather);
  const size_t until = all_arrived() ? arrived_ : arrived_ / gather * gather;
  for (; entered_ < until; ++entered_) enter(entered_);
}

void Simulator::enter(size_t request) {
  if (result_.outputs[request].cancelled) return;  // while it was gathered
  const SimulatedRequest& r = requests_[request];
  auto s = std::make_unique<Sequence>();
  s->id = request;
  s->tokens = r.prompt;
  s->num_prompt = static_cast<int32_t>(r.prompt.size());
  s->max_length = s->num_prompt + asked_tokens(r);
  s->priority = r.options.priority;
  s->cache_priority = r.options.cache_priority;
  if (config_.enable_prefix_caching) s->cache_key = shared_cache_key(r.options.cache_salt);
  scheduler_.add(s.get());
  live_[request] = std::move(s);
}

void Simulator::cancel() {
  for (; cancelled_ < by_cancellation_.size(); ++cancelled_) {
    const size_t request = by_cancellation_[cancelled_];
    if (cancelled_at(requests_[request]) > now_) break;
    if (result_.outputs[request].finished >= 0) continue;
    result_.outputs[request].cancelled = true;
    finish(request);
  }
}

void Simulator::admit() {
  for (const Sequence* s : scheduler_.admit()) {
    SimulatedOutput& output = result_.outputs[s->id];
    if (output.admitted >= 0) continue;
    output.admitted = now_;
    output.cached_tokens = s->num_cached;
  }
}

void Simulator::run_step() {
  if (watch) watch(batch_);
  const StepShape shape = shape_of(batch_, config_.limits);
  const double seconds = config_.cost.seconds(shape);
  rows_.assign(scheduler_.logit_rows().begin(), scheduler_.logit_rows().end());
  scheduler_.complete();
  record(shape, seconds);
  now_ += seconds;
  for (const LogitRow& row : rows_) {
    Sequence& s = *row.sequence;
    std::vector<double>& times = result_.outputs[s.id].token_times;
    times.push_back(now_);
    if (static_cast<int32_t>(times.size()) < requests_[s.id].output_tokens) {
      scheduler_.append(s, own_token(s.id));
    } else {
      finish(s.id);
    }
  }
}

// With everything that the step has computed in pages, and before those that it ends give theirs back.
void Simulator::record(const StepShape& shape, double seconds) {
  ++result_.num_steps;
  result_.rows += shape.rows;
  result_.busy_seconds += seconds;
  int64_t tokens = 0;
  for (const Sequence* s : scheduler_.running()) tokens += s->num_computed;
  result_.peak_kv_tokens = std::max(result_.peak_kv_tokens, tokens);
  std::vector<int32_t> held;
  for (int32_t g = 0; g < cache_.num_groups(); ++g) {
    held.push_back(held_pages(cache_, g));
    int32_t& peak = result_.peak_pages[static_cast<size_t>(g)];
    peak = std::max(peak, held.back());
  }
  if (!config_.record_steps) return;
  result_.steps.push_back({now_, seconds, shape, scheduler_.num_running(), scheduler_.num_waiting(), std::move(held)});
}

void Simulator::finish(size_t request) {
  SimulatedOutput& output = result_.outputs[request];
  require(output.finished < 0, "a request is finished once");
  output.finished = now_;
  result_.makespan = std::max(result_.makespan, now_);
  ++finished_;
  if (live_[request] == nullptr) return;  // it never reached the scheduler
  output.pauses = live_[request]->num_pauses;
  scheduler_.finish(*live_[request]);
  live_[request].reset();
}

}  // namespace precast
