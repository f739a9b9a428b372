// A model without weights, for tests of everything around the model. Each position's KV entry holds the token and the
// position that were run; a row's logits are pseudo-random numbers keyed by the tokens that its sequence finds in its
// own pages, in order: in every layer group, those that the group's window lets it see. A wrong page, a position run
// twice or left out, or another sequence's entry changes every later token.
//
// With a `range`, a sequence lives among the tokens of its first token's range (0 … range − 1, range … 2 · range − 1,
// …): only those get logits above −100, and whoever finds another in its pages fails the step. Requests of different
// ranges share nothing, so any cross-talk between them is caught where it happens.
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
  int32_t range = 0;          // 0: none
};

class CountingBackend final : public Backend {
 public:
  explicit CountingBackend(const CountingConfig& config) : config_(config) {}
  const ModelLimits& limits() const override { return config_.limits; }
  void allocate_pages(const std::vector<int32_t>& num_pages) override;
  void load_pages(const std::vector<PageLoad>& loads) override;
  std::span<const uint8_t> page(int32_t group, PageId page) const override;
  // Throws InvariantError when a sequence's pages do not hold its positions, or hold tokens of another range.
  void run(const StepBatch& batch, float* logits) override;

 private:
  struct Entry {
    TokenId token = -1;
    int32_t position = -1;
  };
  Entry& entry(const StepBatch& batch, size_t group, const StepSequence& sequence, int32_t position);
  uint64_t seen(const StepBatch& batch, size_t group, const StepSequence& sequence, int32_t position, uint64_t state);
  void copy(const PageCopy& copy);
  void write_logits(uint64_t state, TokenId last, float* logits) const;

  CountingConfig config_;
  std::vector<int32_t> num_pages_;
  std::vector<std::vector<Entry>> entries_;  // [group][num_pages × page_tokens]
  int64_t step_ = 0;
};

}  // namespace precast
