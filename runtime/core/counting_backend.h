// A model without weights, for tests of everything around the model. Each position's KV entry holds the token and the
// position that were run; a row's logits are pseudo-random numbers keyed by the tokens that its sequence finds in its
// own pages, in order. A wrong page, a position run twice or left out, or another sequence's entry changes every later
// token.
#pragma once
#include <vector>

#include "runtime/core/core.h"

namespace precast {

struct CountingConfig {
  ModelLimits limits;
  double step_seconds = 0;    // each step sleeps this long
  int64_t fail_at_step = -1;  // the step (from 0) that throws
  TokenId poison_token = -1;  // a row that runs this token has NaN logits
  int32_t levels = 1 << 20;   // distinct logit values: few make ties
};

class CountingBackend final : public Backend {
 public:
  explicit CountingBackend(const CountingConfig& config) : config_(config) {}
  const ModelLimits& limits() const override { return config_.limits; }
  void allocate_pages(int32_t num_pages) override;
  // Throws InvariantError when a sequence's pages do not hold its positions.
  void run(const StepBatch& batch, float* logits) override;
  void copy_page(PageId from, PageId to, int32_t num_tokens) override;

 private:
  struct Entry {
    TokenId token = -1;
    int32_t position = -1;
  };
  Entry& entry(const StepBatch& batch, const StepSequence& sequence, int32_t position);
  void write_logits(const StepBatch& batch, const StepSequence& sequence, int32_t position, float* logits);

  CountingConfig config_;
  int32_t num_pages_ = 0;
  std::vector<Entry> entries_;  // [num_pages][page_tokens]
  int64_t step_ = 0;
};

}  // namespace precast
