// The scheduler and the KV cache in virtual time: who would be served when, without a model.
//
// It does what the executor's loop does (arrivals → admit → schedule → a step → tokens), takes a step's time from a
// StepCost, and knows beforehand how many tokens each request gets. The same input gives the same result, to the bit.
#pragma once
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "runtime/core/core.h"
#include "runtime/core/kv_cache.h"
#include "runtime/core/scheduler.h"
#include "runtime/core/step_cost.h"

namespace precast {

// Times are in seconds of virtual time, from zero.
struct SimulatedRequest {
  double arrival = 0;
  std::vector<TokenId> prompt;  // not empty; only equality matters, so any numbers do
  int32_t output_tokens = 1;    // it ends after these, at least one
  int32_t max_tokens = 0;       // what it asks for, and is promised; 0: output_tokens
  double cancelled = std::numeric_limits<double>::infinity();
  RequestOptions options = {};
};

// A prompt of `num_tokens`, of which the first num_shared are the beginning of prefix number `prefix`, and the others
// are those of no other request.
std::vector<TokenId> simulated_prompt(size_t request, int32_t num_tokens, int32_t num_shared, int32_t prefix);

struct SimulatorConfig {
  ModelLimits limits;
  std::vector<int32_t> num_pages;  // of each layer group
  SchedulerConfig scheduler = {};
  StepCost cost = {};
  bool enable_prefix_caching = true;
  // Requests reach the scheduler this many at a time, when the last of them has arrived: static batches are collected
  // so. The last ones come as soon as no others will.
  int32_t gather = 1;
  bool record_steps = false;
};

// What became of a request. −1: that never came.
struct SimulatedOutput {
  double admitted = -1;
  double finished = -1;  // or cancelled
  std::vector<double> token_times;
  int32_t cached_tokens = 0;
  int32_t pauses = 0;
  bool cancelled = false;
};

struct SimulatedStep {
  double begin = 0, seconds = 0;
  StepShape shape;
  int32_t running = 0, waiting = 0;  // while it runs
  std::vector<int32_t> held_pages;   // [group] pages that running sequences hold, shared ones once
};

struct Simulated {
  std::vector<SimulatedOutput> outputs;  // [request]
  std::vector<SimulatedStep> steps;      // when recorded
  double makespan = 0;                   // when the last request was finished
  double busy_seconds = 0;               // of steps
  int64_t num_steps = 0;
  int64_t rows = 0;
  int64_t peak_kv_tokens = 0;       // most positions that running sequences have in pages, shared ones for each
  std::vector<int32_t> peak_pages;  // [group] most pages that running sequences hold, shared ones once
  int64_t pauses = 0;
  int64_t evicted_pages = 0;
};

class Simulator {
 public:
  // `requests` by rising arrival. Throws RequestError for a request that can never run, EngineError for a configuration
  // that cannot.
  Simulator(const SimulatorConfig& config, std::vector<SimulatedRequest> requests);

  // To the end of all requests; once.
  Simulated run();

  // Called before a step's time passes, with what is scheduled: for tests.
  std::function<void(const StepBatch&)> watch;
  const Scheduler& scheduler() const { return scheduler_; }
  const KvCache& cache() const { return cache_; }
  // Of a request, while it lives: else null.
  const Sequence* sequence(size_t request) const { return live_[request].get(); }

 private:
  void check_requests() const;
  void arrive();
  void enter(size_t request);
  void cancel();
  void admit();
  void run_step();
  void record(const StepShape& shape, double seconds);
  void finish(size_t request);
  bool all_arrived() const { return arrived_ == requests_.size(); }
  double next_event() const;

  const SimulatorConfig config_;
  const std::vector<SimulatedRequest> requests_;
  KvCache cache_;
  Scheduler scheduler_;
  StepBatch batch_;
  std::vector<LogitRow> rows_;
  std::vector<std::unique_ptr<Sequence>> live_;  // [request]
  std::vector<size_t> by_cancellation_;          // requests that are cancelled, by when
  size_t arrived_ = 0, entered_ = 0, cancelled_ = 0, finished_ = 0;
  double now_ = 0;
  Simulated result_;
};

}  // namespace precast
