// Who runs in the next step: inflight batching with chunked prefill under a token budget.
//
// A step takes one token of every sequence in decode, then prefill chunks into what is left of the budget. Who enters
// is decided by an admission policy (admission.h), in an order with a bound on overtaking (request_queue.h); how
// prompts share the budget by prefill_share.h. docs/scheduling.md states what each of them guarantees.
//
// No threads, no clock, no backend: everything here is a function of the calls.
#pragma once
#include <span>
#include <vector>

#include "runtime/core/admission.h"
#include "runtime/core/core.h"
#include "runtime/core/kv_cache.h"
#include "runtime/core/prefill_share.h"
#include "runtime/core/request_queue.h"

namespace precast {

struct SchedulerConfig {
  int32_t max_num_tokens = 0;    // rows of a step; 0: the engine's limit
  int32_t max_batch_size = 0;    // sequences of a step; 0: the engine's limit
  int32_t max_chunk_tokens = 0;  // rows of one prompt in a step, a page at least; 0: as many as there are
  SchedulerPolicy policy = SchedulerPolicy::guaranteed_no_evict;
  RequestOrder request_order = RequestOrder::fcfs;
  PrefillOrder prefill_order = PrefillOrder::first_come;
  int32_t max_overtakes = 16;
};

// A row whose logits a step gives. At position = length() − 1 the next token is sampled from it; before, it tells of
// the prompt's token at position + 1 (Sequence::prompt_logits).
struct LogitRow {
  Sequence* sequence;
  int32_t position;
};

class Scheduler {
 public:
  // Throws EngineError when a step or a chunk does not hold one page of tokens, or a number is negative.
  Scheduler(const ModelLimits& limits, const SchedulerConfig& config, KvCache& cache);

  // Puts a sequence (waiting) at the end of the queue. It must stay where it is until it is finished.
  void add(Sequence* sequence);
  // Admits from the queue while there is room; returns who was admitted (valid until the next call). After a pause a
  // sequence is admitted again.
  const std::vector<Sequence*>& admit();
  // Fills `batch` with the next step; false when there is nothing to run. May pause sequences.
  bool schedule(StepBatch& batch);
  // Whose the scheduled step's rows of logits are, in order.
  std::span<const LogitRow> logit_rows() const { return logit_rows_; }
  // Records that the scheduled step has run.
  void complete();
  // Appends a sampled token, which the next step will run.
  void append(Sequence& sequence, TokenId token);
  // Ends a sequence in any state and gives its pages back; what it has computed stays in the cache.
  void finish(Sequence& sequence);

  int32_t num_waiting() const { return static_cast<int32_t>(queue_.size()); }
  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  const std::vector<Sequence*>& running() const { return running_; }  // by their start
  uint64_t num_pauses() const { return pauses_; }
  int32_t num_decoding() const { return num_decoding_; }  // of the scheduled step: its first sequences
  int32_t max_running() const { return max_running_; }    // sequences that can be admitted at a time
  bool empty() const { return queue_.empty() && running_.empty(); }
  // Throws InvariantError when a sequence or the cache breaks its invariants.
  void check() const;

 private:
  bool admit_some();
  bool waits_for_prefix(const Sequence& sequence) const;
  void start(Sequence& sequence);
  void pause(Sequence& sequence);
  bool decode_waits() const;
  void schedule_decode(StepBatch& batch);
  void schedule_prefill(StepBatch& batch);
  void push(Sequence& sequence, int32_t end, StepBatch& batch);
  void push_logit_rows(Sequence& sequence, int32_t end, int32_t first_row, StepBatch& batch);

  const ModelLimits limits_;
  int32_t budget_;       // rows of a step
  int32_t max_chunk_;    // rows of one prompt in a step
  int32_t max_running_;  // see the constructor
  KvCache& cache_;
  AdmissionPolicy policy_;
  PrefillOrder prefill_order_;
  RequestQueue queue_;
  std::vector<Sequence*> running_;  // by their start
  uint64_t starts_ = 0;
  uint64_t pauses_ = 0;
  // Nothing that could change who may enter has happened since the last admission was tried.
  bool tried_ = false;
  uint64_t tried_version_ = 0;

  std::vector<Sequence*> admitted_;
  std::vector<Sequence*> candidates_;
  std::vector<PrefillShare> prefill_;
  struct Chunk {
    Sequence* sequence;
    int32_t end;  // its num_computed after the step
  };
  std::vector<Chunk> step_;
  int32_t num_decoding_ = 0;
  std::vector<LogitRow> logit_rows_;
};

}  // namespace precast
