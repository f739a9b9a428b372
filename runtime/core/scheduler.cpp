#include "runtime/core/scheduler.h"

#include <algorithm>

#include "runtime/core/check.h"

namespace precast {

Scheduler::Scheduler(const ModelLimits& limits, int32_t max_num_tokens, int32_t max_batch_size, KvCache& cache)
    : page_tokens_(limits.page_tokens), cache_(cache) {
  budget_ = max_num_tokens > 0 ? std::min(max_num_tokens, limits.max_num_tokens) : limits.max_num_tokens;
  if (budget_ < page_tokens_) {
    throw EngineError("max_num_tokens is " + std::to_string(budget_) + "; a step must hold at least one page of " +
                      std::to_string(page_tokens_) + " tokens");
  }
  const int32_t sequences =
      max_batch_size > 0 ? std::min(max_batch_size, limits.max_batch_size) : limits.max_batch_size;
  // So that decode leaves a page of rows to the first sequence in prefill: it advances in every step.
  max_running_ = std::min(sequences, budget_ - page_tokens_ + 1);
}

void Scheduler::add(Sequence* sequence) {
  PRECAST_CHECK(sequence->state == SequenceState::waiting);
  waiting_.push_back(sequence);
}

const std::vector<Sequence*>& Scheduler::admit() {
  admitted_.clear();
  while (!waiting_.empty() && num_running() < max_running_) {
    Sequence* sequence = waiting_.front();
    if (!cache_.admit(*sequence, sequence->max_length - 1)) break;
    waiting_.pop_front();
    sequence->state = SequenceState::prefill;
    running_.push_back(sequence);
    admitted_.push_back(sequence);
  }
  return admitted_;
}

bool Scheduler::schedule(StepBatch& batch) {
  if constexpr (kDebugChecks) check();
  batch.clear();
  step_.clear();
  sampled_.clear();
  for (Sequence* sequence : running_) {
    if (sequence->state == SequenceState::decode) push(*sequence, sequence->length(), batch);
  }
  for (Sequence* sequence : running_) {
    if (sequence->state != SequenceState::prefill) continue;
    const int32_t end = chunk_end(*sequence, budget_ - static_cast<int32_t>(batch.tokens.size()));
    if (end > sequence->num_computed) push(*sequence, end, batch);
  }
  return !batch.tokens.empty();
}

// Where the next chunk of a prompt ends when it may have `budget` rows: num_computed when none fits.
int32_t Scheduler::chunk_end(const Sequence& sequence, int32_t budget) const {
  const int32_t end = sequence.num_computed + budget;
  if (end >= sequence.num_prompt) return sequence.num_prompt;
  return std::max(end / page_tokens_ * page_tokens_, sequence.num_computed);
}

void Scheduler::push(Sequence& sequence, int32_t end, StepBatch& batch) {
  cache_.extend(sequence.table, end);
  const auto first_row = static_cast<int32_t>(batch.tokens.size());
  const auto first_page = static_cast<int32_t>(batch.block_tables.size());
  batch.sequences.push_back({first_row, end - sequence.num_computed, sequence.num_computed, first_page});
  batch.tokens.insert(batch.tokens.end(), sequence.tokens.begin() + sequence.num_computed,
                      sequence.tokens.begin() + end);
  batch.block_tables.insert(batch.block_tables.end(), sequence.table.pages.begin(), sequence.table.pages.end());
  step_.push_back({&sequence, end});
  if (end == sequence.length()) {
    batch.logit_rows.push_back(static_cast<int32_t>(batch.tokens.size()) - 1);
    sampled_.push_back(&sequence);
  }
}

void Scheduler::complete() {
  for (const Share& share : step_) share.sequence->num_computed = share.end;
  step_.clear();
}

void Scheduler::append(Sequence& sequence, TokenId token) {
  PRECAST_CHECK(sequence.num_computed == sequence.length() && sequence.length() < sequence.max_length);
  sequence.tokens.push_back(token);
  sequence.state = SequenceState::decode;
}

void Scheduler::finish(Sequence& sequence) {
  if (sequence.state == SequenceState::waiting) std::erase(waiting_, &sequence);
  if (sequence.state == SequenceState::prefill || sequence.state == SequenceState::decode)
    std::erase(running_, &sequence);
  cache_.release(sequence);
  sequence.state = SequenceState::finished;
}

void Scheduler::check() const {
  for (const Sequence* sequence : waiting_) check_sequence(*sequence, page_tokens_);
  for (const Sequence* sequence : running_) check_sequence(*sequence, page_tokens_);
  cache_.check_integrity(running_);
  require(num_running() <= max_running_, "running sequences fit a step");
}

}  // namespace precast
