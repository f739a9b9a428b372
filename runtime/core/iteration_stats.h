// What one step was like. Names are those of TensorRT-LLM's IterationStats, in snake case, where it has the same thing.
//
// Each output of a request (n, best_of) counts as a request here, as there. A block is a KV page, of any layer group.
#pragma once
#include <cstdint>

#include "runtime/core/core.h"
#include "runtime/core/event_ring.h"

namespace precast {

class KvCache;
class Scheduler;

struct KvCacheStats {
  int32_t max_num_blocks = 0;
  int32_t free_num_blocks = 0;  // held by no request: free, or cached until they are needed
  int32_t used_num_blocks = 0;
  int32_t tokens_per_block = 0;
  // Since the start.
  uint64_t alloc_total_blocks = 0;  // handed out
  uint64_t reused_blocks = 0;       // of prompts, found in the cache on admission (counted once, not in every group)
  uint64_t missed_blocks = 0;       // of prompts, that had to be computed
  double cache_hit_rate = 0;        // reused / (reused + missed)
};

struct InflightBatchingStats {
  int32_t num_scheduled_requests = 0;  // in this step
  int32_t num_context_requests = 0;    // of these, in prefill
  int32_t num_gen_requests = 0;        // of these, in decode
  int32_t num_ctx_tokens = 0;          // prefill rows of this step
  int32_t num_paused_requests = 0;     // by this step
};

struct IterationStats {
  double timestamp = 0;  // its end, in seconds since 1970
  uint64_t iter = 0;     // 1, 2, …
  double iter_latency_ms = 0;
  double model_latency_ms = 0;                      // of that, in the model; the rest is ours
  double new_active_requests_queue_latency_ms = 0;  // that those who are new had waited, together
  int32_t num_new_active_requests = 0;              // admitted for the first time
  int32_t num_active_requests = 0;                  // admitted, after this step
  int32_t num_queued_requests = 0;                  // not admitted, after this step
  int32_t num_completed_requests = 0;               // finished by this step, or since the one before
  int32_t max_num_active_requests = 0;              // that can be admitted at a time
  KvCacheStats kv_cache_stats;
  InflightBatchingStats inflight_batching_stats;
};

// Gathers what the loop tells it of a step. All of the loop's thread, but `IterationStats` themselves.
class IterationRecorder {
 public:
  using Ring = EventRing<IterationStats>;

  explicit IterationRecorder(size_t capacity) : ring_(capacity) {}
  void began(Clock::time_point now) { began_ = now; }
  void admitted(const Sequence& sequence, Clock::duration queued, int32_t page_tokens);
  void completed() { ++next_.num_completed_requests; }
  // A step has run, for `model` in the backend.
  void ran(const StepBatch& batch, Clock::duration model, const Scheduler& scheduler, const KvCache& cache);
  Ring& ring() { return ring_; }

 private:
  Ring ring_;
  IterationStats next_;
  Clock::time_point began_{};
  uint64_t pauses_ = 0;
};

}  // namespace precast
