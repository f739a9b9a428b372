// Requests in, outputs out, one loop thread between: admit → schedule → run → sample → deliver.
//
// In: submit and cancel put into one mutex-protected inbox that the loop swaps out once a step. A lock-free queue would
// save nothing: the lock is held for a push or a swap of vectors, once a request, and an idle loop must sleep on
// something anyway, which is the condition variable of the same mutex.
// Out: each step's outputs go into one outbox, and an eventfd is readable while it holds anything. An idle executor
// uses no CPU. A fault of the loop (the backend's, or no memory) ends it: who has no answer yet gets an error, and
// stats say why.
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/core/core.h"
#include "runtime/core/iteration_stats.h"
#include "runtime/core/kv_cache.h"
#include "runtime/core/live_request.h"
#include "runtime/core/outbox.h"
#include "runtime/core/prefixes.h"
#include "runtime/core/scheduler.h"
#include "runtime/core/step_sampler.h"

namespace precast {

struct ExecutorConfig {
  std::vector<int32_t> num_pages;  // of each layer group's KV pool
  SchedulerConfig scheduler;
  bool enable_prefix_caching = true;         // requests share what they have computed of equal beginnings
  std::shared_ptr<const Prefixes> prefixes;  // computed at build time; null: none
  size_t kv_events = 0;                      // how many events of the prefix cache are kept for kv_events(); 0: none
  size_t iteration_stats = 1000;             // how many steps are kept for iteration_stats(); 0: none
  std::vector<TokenId> eos_token_ids;
  // Requests that have not been admitted, and tokens of their prompts, beyond which submit refuses; 0: no limit.
  int32_t max_queued_requests = 0;
  int64_t max_queued_tokens = 0;
};

struct ExecutorStats {
  int32_t waiting = 0;  // sequences in the queue, and requests that the loop has not seen yet
  int32_t running = 0;
  int32_t queued_requests = 0;  // of which no sequence has been admitted
  int64_t queued_tokens = 0;    // of their prompts
  // KV pages of all layer groups together.
  int32_t num_pages = 0;
  int32_t free_pages = 0;       // held by nobody
  int32_t cached_pages = 0;     // held by the prefix cache alone, until they are needed
  int32_t available_pages = 0;  // free or cached, and not promised
  uint64_t pauses = 0;          // of sequences, by max_utilization
  uint64_t steps = 0;
  uint64_t step_tokens = 0;         // rows run in all steps
  uint64_t step_sequences = 0;      // sequences run in all steps
  uint64_t finished = 0;            // requests
  double step_running_seconds = 0;  // how long the current step has been running; 0: none is
  bool alive = false;               // the loop takes requests
  bool paused = false;
  std::string error;  // why it does not, when the engine failed
};

class Executor {
 public:
  // Allocates the pool and starts the loop. `vocab` may be null: outputs have no text then. Throws EngineError for a
  // configuration that cannot run, std::bad_alloc, std::system_error.
  Executor(std::shared_ptr<Backend> backend, ExecutorConfig config, std::shared_ptr<const VocabBytes> vocab);
  ~Executor();  // close(false)
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Enqueues a request. Throws RequestError when it is refused (check_request), when the executor is closed, or when
  // the engine failed, QueueFullError when too many wait, std::bad_alloc; nothing has changed then. From the return on,
  // exactly one delta with a finish reason comes for each of its outputs.
  RequestId submit(std::vector<TokenId> prompt, SamplingParams params, RequestOptions options = {});
  // Ends a request within a step; its output so far is delivered with `cancelled`. A finished or unknown one: nothing.
  void cancel(RequestId id);

  // Between pause and resume no step begins. Requests are taken and wait; cancels, deadlines and close work.
  void pause();
  void resume();

  // Readable while poll would return something. Owned by the executor.
  int fileno() const { return outbox_.fileno(); }
  // At most `max` deltas (0: all), oldest first; never blocks. Works after close too.
  std::vector<OutputDelta> poll(size_t max) { return outbox_.poll(max); }

  // Refuses requests from now on; with `drain` lets those that are there finish, for at most timeout_seconds; cancels
  // the rest and ends the loop, which takes one step at most. Every request has its last delta in the outbox then.
  // Returns whether all of them came to their own end: none was cancelled here, nor failed with the engine.
  bool close(bool drain, double timeout_seconds);

  ExecutorStats stats() const;
  // What the prefix cache has stored and removed since the last call, oldest first; returns how many events were lost
  // because nobody called in time. Meant for one caller.
  uint64_t kv_events(std::vector<CacheEvent>& events);
  // What the steps since the last call were like, oldest first; returns how many were lost. Meant for one caller.
  uint64_t iteration_stats(std::vector<IterationStats>& steps);
  const ModelLimits& limits() const { return limits_; }

 private:
  void loop();
  void step();
  bool intake();
  std::unique_ptr<LiveRequest> make_live(Request&& request) const;
  void refuse(int64_t prompt_tokens) const;
  void enter(std::unique_ptr<LiveRequest>&& request);
  void cancel_now(RequestId id);
  void end_late();
  void leave_queue(LiveRequest& live);
  void sample();
  void take_sample(SampleTask& task);
  bool deliver(LiveRequest& live, LiveRequest::Member& member);
  void finish(LiveRequest& live, FinishReason reason, const std::string& error);
  void publish();
  void cancel_all();
  void fail(std::string&& error);
  void count_pages();

  const ModelLimits limits_;
  const ExecutorConfig config_;
  std::shared_ptr<Backend> backend_;
  std::shared_ptr<const VocabBytes> vocab_;
  int32_t max_pages_ = 0;  // of the longest sequence that the pools can hold

  // The loop's own.
  KvCache cache_;
  Scheduler scheduler_;
  StepSampler sampler_;
  std::vector<SampleTask> samples_;
  StepBatch batch_;
  std::unique_ptr<float[]> logits_;
  std::unordered_map<RequestId, std::unique_ptr<LiveRequest>> live_;
  std::vector<std::unique_ptr<LiveRequest>> gone_;      // since the last publish
  std::vector<OutputDelta> deltas_;                     // of this step
  Clock::time_point now_{};                             // of what they tell
  std::vector<std::unique_ptr<LiveRequest>> requests_;  // swapped with the inbox
  std::vector<RequestId> cancels_;
  bool may_step_ = false;                                        // not paused when these were taken
  std::set<std::pair<Clock::time_point, RequestId>> deadlines_;  // of requests that are live
  int32_t left_requests_ = 0;                                    // that have left the queue since the last publish
  int64_t left_tokens_ = 0;
  ExecutorStats counters_;
  IterationRecorder recorder_;

  // Shared, under mutex_.
  mutable std::mutex mutex_;
  std::condition_variable wake_;  // the loop waits here
  std::condition_variable ended_;
  std::vector<std::unique_ptr<LiveRequest>> inbox_;
  std::vector<RequestId> cancel_inbox_;
  bool closing_ = false;  // refuse requests, end when there are none
  bool abort_ = false;    // end after this step
  bool paused_ = false;
  bool loop_ended_ = false;
  bool cut_short_ = false;  // the loop ended before every request did
  std::string error_;
  int32_t queued_requests_ = 0;
  int64_t queued_tokens_ = 0;
  ExecutorStats shown_;  // counters_ after the last step
  CacheEvents cache_events_;
  IterationRecorder::Ring iteration_stats_;
  Clock::time_point step_began_{};

  std::atomic<RequestId> next_id_ = 1;
  Outbox outbox_;
  std::mutex close_mutex_;
  std::thread thread_;
};

}  // namespace precast
