#include "runtime/core/step_timer.h"

#include <algorithm>
#include <random>
#include <stdexcept>

#include "runtime/core/logits_processors.h"

namespace precast {

StepTimer::StepTimer(std::shared_ptr<Backend> backend, int32_t num_pages)
    : backend_(std::move(backend)), num_pages_(num_pages), sampler_(backend_->limits().vocab_size) {
  if (num_pages < 1) throw std::invalid_argument("a step needs a page");
  backend_->allocate_pages(std::vector<int32_t>(backend_->limits().groups.size(), num_pages));
  fill();
}

// Computes the first page and copies it to the others.
void StepTimer::fill() {
  const ModelLimits& limits = backend_->limits();
  const int32_t rows = std::min({limits.page_tokens, limits.max_num_tokens, limits.max_seq_len});
  seconds({{rows, 0}}, false);
  StepBatch batch = batch_of({{1, 0}}, false);
  for (int32_t g = 0; g < static_cast<int32_t>(limits.groups.size()); ++g) {
    for (PageId page = 1; page < num_pages_; ++page) batch.copies.push_back({g, 0, page, limits.page_tokens});
  }
  backend_->run(batch, logits_.data());
}

// Sequences take the pages one after the other. Tokens are spread over the vocabulary.
StepBatch StepTimer::batch_of(const std::vector<Rows>& sequences, bool with_logits) const {
  const ModelLimits& limits = backend_->limits();
  std::minstd_rand random(1);
  StepBatch batch;
  batch.clear(limits.groups.size());
  PageId next = 0;
  for (const auto& [rows, position] : sequences) {
    const auto first_row = static_cast<int32_t>(batch.tokens.size());
    batch.sequences.push_back({first_row, rows, position, next});
    for (int32_t i = 0; i < rows; ++i) {
      batch.tokens.push_back(static_cast<TokenId>(random() % static_cast<uint32_t>(limits.vocab_size)));
    }
    const int64_t pages = (int64_t{position} + rows + limits.page_tokens - 1) / limits.page_tokens;
    if (rows < 1 || position < 0 || next + pages > num_pages_) throw std::invalid_argument("the step needs more pages");
    for (int64_t j = 0; j < pages; ++j, ++next) {
      for (std::vector<PageId>& table : batch.block_tables) table.push_back(next);
    }
    if (with_logits) batch.logit_rows.push_back(first_row + rows - 1);
  }
  return batch;
}

StepShape StepTimer::shape(const std::vector<Rows>& sequences, bool with_logits) const {
  return shape_of(batch_of(sequences, with_logits), backend_->limits());
}

double StepTimer::seconds(const std::vector<Rows>& sequences, bool with_logits) {
  const StepBatch batch = batch_of(sequences, with_logits);
  const auto vocab = static_cast<size_t>(backend_->limits().vocab_size);
  logits_.resize(std::max(logits_.size(), batch.logit_rows.size() * vocab));
  SamplingParams greedy;
  greedy.temperature = 0;
  const LogitsProcessors processors(greedy, {}, {});
  const Clock::time_point begin = Clock::now();
  backend_->run(batch, logits_.data());
  for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
    sampler_.sample(std::span(logits_).subspan(i * vocab, vocab), greedy, 0, processors);
  }
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace precast
