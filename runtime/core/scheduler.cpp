#include "runtime/core/scheduler.h"

#include <algorithm>
#include <limits>

#include "runtime/core/check.h"

namespace precast {

namespace {

// Rows of a step.
int32_t step_budget(const ModelLimits& limits, const SchedulerConfig& config) {
  if (std::min({config.max_num_tokens, config.max_batch_size, config.max_chunk_tokens, config.max_overtakes}) < 0) {
    throw EngineError("max_num_tokens, max_batch_size, max_chunk_tokens and max_overtakes must not be negative");
  }
  const int32_t budget =
      config.max_num_tokens > 0 ? std::min(config.max_num_tokens, limits.max_num_tokens) : limits.max_num_tokens;
  if (budget < limits.page_tokens) {
    throw EngineError("max_num_tokens is " + std::to_string(budget) + "; a step must hold at least one page of " +
                      std::to_string(limits.page_tokens) + " tokens");
  }
  return budget;
}

// Rows of one prompt in a step.
int32_t step_chunk(const ModelLimits& limits, const SchedulerConfig& config) {
  if (config.max_chunk_tokens == 0) return std::numeric_limits<int32_t>::max();
  if (config.max_chunk_tokens < limits.page_tokens) {
    throw EngineError("max_chunk_tokens is " + std::to_string(config.max_chunk_tokens) +
                      "; it must be 0 (no limit) or at least one page of " + std::to_string(limits.page_tokens) +
                      " tokens, on whose borders chunks end");
  }
  return config.max_chunk_tokens;
}

}  // namespace

Scheduler::Scheduler(const ModelLimits& limits, const SchedulerConfig& config, KvCache& cache)
    : limits_(limits),
      budget_(step_budget(limits, config)),
      max_chunk_(step_chunk(limits, config)),
      cache_(cache),
      policy_(config.policy),
      prefill_order_(config.prefill_order),
      queue_(config.request_order, config.max_overtakes) {
  const int32_t sequences =
      config.max_batch_size > 0 ? std::min(config.max_batch_size, limits.max_batch_size) : limits.max_batch_size;
  // So that decode leaves a page of rows to the first sequence in prefill: it advances in every step.
  max_running_ = std::min(sequences, budget_ - limits.page_tokens + 1);
}

void Scheduler::add(Sequence* sequence) {
  PRECAST_CHECK(sequence->state == SequenceState::waiting);
  queue_.add(sequence);
  tried_ = false;
}

// ---- admission ------------------------------------------------------------------------------------------------------

const std::vector<Sequence*>& Scheduler::admit() {
  admitted_.clear();
  if (queue_.empty() || (tried_ && tried_version_ == cache_.version())) return admitted_;
  if (policy_.opens(num_running())) {
    while (admit_some()) {
    }
  }
  tried_ = true;
  tried_version_ = cache_.version();
  return admitted_;
}

// One pass over the candidates. True when there is to be another one, because somebody has become urgent, or because
// there is room for more than these.
bool Scheduler::admit_some() {
  if (num_running() >= max_running_) return false;
  queue_.candidates(cache_, candidates_);
  const size_t before = queue_.size();
  for (Sequence* sequence : candidates_) {
    const AdmissionTerms terms = policy_.terms(*sequence, num_running());
    const bool waits = policy_.waits_for_prefixes() && waits_for_prefix(*sequence);
    if (waits || !cache_.admit(*sequence, terms.num_positions, terms.spare_pages)) {
      if (queue_.is_urgent(*sequence)) return false;
      continue;
    }
    const bool urgent = queue_.admitted(sequence);
    start(*sequence);
    if (num_running() >= max_running_) return false;
    if (urgent) return true;
  }
  return queue_.size() < before && before > candidates_.size();
}

void Scheduler::start(Sequence& sequence) {
  if (sequence.num_pauses == 0) sequence.num_cached = std::min(sequence.num_computed, sequence.num_prompt);
  sequence.state = SequenceState::prefill;
  sequence.start = ++starts_;
  running_.push_back(&sequence);
  admitted_.push_back(&sequence);
}

// Whether somebody is computing at least a page more of the sequence's beginning than what is cached now.
bool Scheduler::waits_for_prefix(const Sequence& sequence) const {
  if (!sequence.cache_key || sequence.prompt_logits) return false;
  const auto most = static_cast<std::ptrdiff_t>(sequence.length()) - 1;
  int32_t cached = -1;
  for (const Sequence* other : running_) {
    if (other->state != SequenceState::prefill || other->cache_key != sequence.cache_key) continue;
    const auto end = other->tokens.begin() + std::min(most, static_cast<std::ptrdiff_t>(other->length()));
    const auto common = static_cast<int32_t>(std::mismatch(other->tokens.begin(), end, sequence.tokens.begin()).first -
                                             other->tokens.begin());
    if (common < limits_.page_tokens) continue;
    if (cached < 0) cached = cache_.cached(sequence);
    if (common - cached >= limits_.page_tokens) return true;
  }
  return false;
}

// Gives the pages back and the sequence to the front of the queue; what it had computed stays in the cache while room
// lasts.
void Scheduler::pause(Sequence& sequence) {
  cache_.keep(sequence);
  cache_.release(sequence);
  std::erase(running_, &sequence);
  sequence.state = SequenceState::waiting;
  ++sequence.num_pauses;
  ++pauses_;
  queue_.put_back(&sequence);
}

// ---- a step ---------------------------------------------------------------------------------------------------------

bool Scheduler::schedule(StepBatch& batch) {
  if constexpr (kDebugChecks) check();
  batch.clear(limits_.groups.size());
  step_.clear();
  logit_rows_.clear();
  if (!decode_waits()) schedule_decode(batch);
  num_decoding_ = static_cast<int32_t>(batch.sequences.size());
  schedule_prefill(batch);
  if (batch.tokens.empty()) return false;
  cache_.take_copies(batch.copies);
  return true;
}

bool Scheduler::decode_waits() const {
  const auto in_prefill = [](const Sequence* s) { return s->state == SequenceState::prefill; };
  return policy_.decodes_together() && std::ranges::any_of(running_, in_prefill);
}

// Who started last is paused until the page that somebody needs is there. Who started first never is: alone, it has the
// whole pool.
void Scheduler::schedule_decode(StepBatch& batch) {
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.state != SequenceState::decode) continue;
    while (running_.size() > i && cache_.coverable(sequence) < sequence.length()) {
      require(running_.size() > 1, "the pool holds every single sequence");
      pause(*running_.back());
    }
    if (running_.size() > i) push(sequence, sequence.length(), batch);
  }
}

void Scheduler::schedule_prefill(StepBatch& batch) {
  prefill_.clear();
  // Rows of prompts whose logits are wanted, beside the one that every sequence may have.
  int32_t prompt_rows = limits_.max_logit_rows() - num_running();
  for (Sequence* sequence : running_) {
    if (sequence->state != SequenceState::prefill) continue;
    int32_t most = std::min(sequence->length(), cache_.coverable(*sequence));
    if (most - sequence->num_computed > max_chunk_) most = sequence->num_computed + max_chunk_;
    if (sequence->prompt_logits) {
      const int32_t from = std::max(sequence->num_computed, sequence->num_prompt_logits);
      const int32_t wanted = std::max(0, sequence->num_prompt - 1 - from);
      if (wanted > prompt_rows) most = std::min(most, (from + prompt_rows) / limits_.page_tokens * limits_.page_tokens);
      prompt_rows -= std::clamp(most - from, 0, wanted);
    }
    prefill_.push_back({sequence, most, sequence->num_computed});
  }
  share_prefill(prefill_order_, budget_ - static_cast<int32_t>(batch.tokens.size()), limits_.page_tokens, prefill_);
  for (const PrefillShare& share : prefill_) {
    int32_t end = share.end;
    // Those before it may have taken what was available; a page is always promised.
    const int32_t coverable = cache_.coverable(*share.sequence);
    if (end > coverable) end = coverable / limits_.page_tokens * limits_.page_tokens;
    if (end > share.sequence->num_computed) push(*share.sequence, end, batch);
  }
}

void Scheduler::push(Sequence& sequence, int32_t end, StepBatch& batch) {
  cache_.extend(sequence, end);
  const auto first_row = static_cast<int32_t>(batch.tokens.size());
  const auto first_page = static_cast<int32_t>(batch.block_tables[0].size());
  batch.sequences.push_back({first_row, end - sequence.num_computed, sequence.num_computed, first_page});
  batch.tokens.insert(batch.tokens.end(), sequence.tokens.begin() + sequence.num_computed,
                      sequence.tokens.begin() + end);
  for (size_t g = 0; g < sequence.tables.size(); ++g) {
    const std::vector<PageId>& pages = sequence.tables[g].pages;
    batch.block_tables[g].insert(batch.block_tables[g].end(), pages.begin(), pages.end());
  }
  step_.push_back({&sequence, end});
  push_logit_rows(sequence, end, first_row, batch);
}

void Scheduler::push_logit_rows(Sequence& sequence, int32_t end, int32_t first_row, StepBatch& batch) {
  const auto want = [&](int32_t position) {
    batch.logit_rows.push_back(first_row + position - sequence.num_computed);
    logit_rows_.push_back({&sequence, position});
  };
  if (sequence.prompt_logits) {
    const int32_t from = std::max(sequence.num_computed, sequence.num_prompt_logits);
    for (int32_t position = from; position < std::min(end, sequence.num_prompt - 1); ++position) want(position);
  }
  if (end == sequence.length()) want(end - 1);
}

void Scheduler::complete() {
  for (const Chunk& chunk : step_) {
    Sequence& sequence = *chunk.sequence;
    cache_.computed(sequence, chunk.end);
    if (sequence.prompt_logits) {
      sequence.num_prompt_logits = std::max(sequence.num_prompt_logits, std::min(chunk.end, sequence.num_prompt - 1));
    }
  }
  step_.clear();
}

void Scheduler::append(Sequence& sequence, TokenId token) {
  PRECAST_CHECK(sequence.num_computed == sequence.length() && sequence.length() < sequence.max_length);
  sequence.tokens.push_back(token);
  if (sequence.state == SequenceState::prefill) tried_ = false;  // who waited for its prefix need not any more
  sequence.state = SequenceState::decode;
}

void Scheduler::finish(Sequence& sequence) {
  if (sequence.state == SequenceState::waiting) queue_.remove(&sequence);
  if (sequence.state == SequenceState::prefill || sequence.state == SequenceState::decode) {
    std::erase(running_, &sequence);
    cache_.keep(sequence);
    cache_.release(sequence);
  }
  sequence.state = SequenceState::finished;
  tried_ = false;
}

void Scheduler::check() const {
  std::vector<Sequence*> waiting;
  queue_.append_all(waiting);
  for (const Sequence* sequence : waiting) {
    require(sequence->state == SequenceState::waiting, "who is in the queue waits");
    check_sequence(*sequence, limits_.page_tokens);
  }
  for (const Sequence* sequence : running_) check_sequence(*sequence, limits_.page_tokens);
  cache_.check_integrity(running_);
  require(num_running() <= max_running_, "running sequences fit a step");
}

}  // namespace precast
