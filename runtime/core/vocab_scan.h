// One row of logits over the vocabulary. The maxima of its blocks are kept, so that most of the row is not read again.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "plugins/cpu/kernels.h"
#include "runtime/core/core.h"

namespace precast {

inline constexpr double kWeightOfBest = 0x1p40;

// e^x for x ≤ 0, relative error below 1e-6; x below −87 counts as −87.
float exp_nonpositive(float x);

// Ranks (logit falling, id rising) as falling integers.
uint64_t rank_key(float logit, size_t id);
inline size_t id_of(uint64_t key) { return 0xFFFFFFFFu - static_cast<uint32_t>(key); }

// Invariants after scan and every changed(): maximum(), and the maximum of each block, are those of the row; the row
// holds finite values and −∞.
class VocabScan {
 public:
  explicit VocabScan(int32_t vocab_size);

  // Takes a row, which must stay until the next. False: it has NaN or infinite values.
  bool scan(std::span<const float> row);
  // Says that the row's value at `token` is another one now. The invariants hold again after the next refresh.
  void changed(TokenId token) { dirty_[static_cast<size_t>(token) / kVocabBlock] = 1; }
  void refresh();

  float maximum() const { return maximum_; }
  // Of the tokens with the maximum, the lowest id.
  TokenId best() const;
  // A logit that at least `count` tokens reach, as high as the blocks tell; −∞ when they tell nothing.
  float reached_by(size_t count);
  // The ids of all tokens with logit ≥ threshold, rising.
  void at_least(float threshold, std::vector<int32_t>& ids) const;

  // The weight of a token is floor(2^40 · e^((logit − maximum) / temperature)), an integer: sums are exact in any
  // order. The weights of tokens with these logits.
  void weigh(std::span<const float> logits, float inverse_temperature, std::span<uint64_t> weights) const;
  // Sums the weights of all tokens.
  uint64_t sum_weights(float inverse_temperature);
  // After sum_weights: the first id such that the weights up to it, its own included, are above `target` < the sum.
  TokenId find(uint64_t target, float inverse_temperature) const;

 private:
  std::span<const float> block(size_t index) const;

  const KernelTable& kernels_;
  std::span<const float> row_;
  float maximum_ = 0;
  std::vector<float> maxima_;   // [blocks]
  std::vector<uint8_t> dirty_;  // [blocks]
  std::vector<uint64_t> sums_;  // [blocks]
  std::vector<float> scratch_;
};

}  // namespace precast
