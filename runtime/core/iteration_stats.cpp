#include "runtime/core/iteration_stats.h"

#include <chrono>
#include <utility>

#include "runtime/core/kv_cache.h"
#include "runtime/core/scheduler.h"

namespace precast {
namespace {

double milliseconds(Clock::duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

}  // namespace

void IterationRecorder::admitted(const Sequence& sequence, Clock::duration queued, int32_t page_tokens) {
  ++next_.num_new_active_requests;
  next_.new_active_requests_queue_latency_ms += milliseconds(queued);
  const int32_t pages = (sequence.num_prompt + page_tokens - 1) / page_tokens;
  const int32_t reused = sequence.num_cached / page_tokens;
  next_.kv_cache_stats.reused_blocks += static_cast<uint64_t>(reused);
  next_.kv_cache_stats.missed_blocks += static_cast<uint64_t>(pages - reused);
}

void IterationRecorder::ran(const StepBatch& batch, Clock::duration model, const Scheduler& scheduler,
                            const KvCache& cache) {
  next_.timestamp = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  ++next_.iter;
  next_.iter_latency_ms = milliseconds(Clock::now() - began_);
  next_.model_latency_ms = milliseconds(model);
  next_.num_active_requests = scheduler.num_running();
  next_.num_queued_requests = scheduler.num_waiting();
  next_.max_num_active_requests = scheduler.max_running();

  KvCacheStats& kv = next_.kv_cache_stats;
  kv.max_num_blocks = kv.free_num_blocks = 0;
  for (int32_t g = 0; g < cache.num_groups(); ++g) {
    kv.max_num_blocks += cache.num_pages(g);
    kv.free_num_blocks += cache.num_free(g) + cache.num_evictable(g);
  }
  kv.used_num_blocks = kv.max_num_blocks - kv.free_num_blocks;
  kv.tokens_per_block = cache.page_tokens();
  kv.alloc_total_blocks = cache.num_taken();
  const auto looked_up = static_cast<double>(kv.reused_blocks + kv.missed_blocks);
  kv.cache_hit_rate = looked_up > 0 ? static_cast<double>(kv.reused_blocks) / looked_up : 0;

  InflightBatchingStats& batching = next_.inflight_batching_stats;
  batching.num_scheduled_requests = static_cast<int32_t>(batch.sequences.size());
  batching.num_gen_requests = scheduler.num_decoding();
  batching.num_context_requests = batching.num_scheduled_requests - batching.num_gen_requests;
  batching.num_ctx_tokens = static_cast<int32_t>(batch.tokens.size()) - batching.num_gen_requests;
  batching.num_paused_requests = static_cast<int32_t>(scheduler.num_pauses() - pauses_);
  pauses_ = scheduler.num_pauses();

  ring_.push(IterationStats(next_));
  next_.new_active_requests_queue_latency_ms = 0;
  next_.num_new_active_requests = next_.num_completed_requests = 0;
}

}  // namespace precast
