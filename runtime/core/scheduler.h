// Who runs in the next step: inflight batching with chunked prefill under a token budget.
//
// Admission is `guaranteed_no_evict`, first come first served: a sequence is admitted when the pages to its completion
// can be promised, so that whoever runs is never paused. The first of the queue waits for room and nobody overtakes it:
// a large max_tokens can hold up those behind it.
//
// A step takes one token of every sequence in decode, then prefill chunks in order of admission into what is left of
// the budget. A chunk ends on an absolute page border unless it is the prompt's last, so that pages are written whole.
#pragma once
#include <deque>
#include <span>
#include <vector>

#include "runtime/core/core.h"
#include "runtime/core/kv_cache.h"

namespace precast {

class Scheduler {
 public:
  // max_num_tokens and max_batch_size: what a step may have at most, within the engine's limits (0: those limits).
  // Throws EngineError when the budget does not hold one page of tokens.
  Scheduler(const ModelLimits& limits, int32_t max_num_tokens, int32_t max_batch_size, KvCache& cache);

  // Puts a sequence (waiting) at the end of the queue. It must stay where it is until it is finished.
  void add(Sequence* sequence);
  // Admits from the queue while there is room; returns who was admitted (valid until the next call).
  const std::vector<Sequence*>& admit();
  // Fills `batch` with the next step; false when there is nothing to run. The sequence of logit row i is sampled()[i].
  bool schedule(StepBatch& batch);
  std::span<Sequence* const> sampled() const { return sampled_; }
  // Records that the scheduled step has run.
  void complete();
  // Appends a sampled token, which the next step will run.
  void append(Sequence& sequence, TokenId token);
  // Ends a sequence in any state and gives its pages back.
  void finish(Sequence& sequence);

  int32_t num_waiting() const { return static_cast<int32_t>(waiting_.size()); }
  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  bool empty() const { return waiting_.empty() && running_.empty(); }
  // Throws InvariantError when a sequence or the cache breaks its invariants.
  void check() const;

 private:
  int32_t chunk_end(const Sequence& sequence, int32_t budget) const;
  void push(Sequence& sequence, int32_t end, StepBatch& batch);

  int32_t page_tokens_;
  int32_t budget_;       // rows of a step
  int32_t max_running_;  // see the constructor
  KvCache& cache_;
  std::deque<Sequence*> waiting_;
  std::vector<Sequence*> running_;  // in order of admission
  std::vector<Sequence*> admitted_;
  struct Share {
    Sequence* sequence;
    int32_t end;  // its num_computed after the step
  };
  std::vector<Share> step_;
  std::vector<Sequence*> sampled_;
};

}  // namespace precast
