// The tokens that filters still leave, and the draw among them.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/core/vocab_scan.h"

namespace precast {

class Candidates {
 public:
  // Takes all tokens of `row` with logit ≥ threshold.
  void collect(std::span<const float> row, const VocabScan& scan, float threshold, float inverse_temperature);

  size_t size() const { return tokens_.size(); }
  uint64_t weight() const;  // of all

  // Keeps the first `count` of the ranking.
  void keep_first(size_t count);
  // Keeps the shortest beginning of the ranking whose weight is at least `weight` ≥ 1; all, if there is none.
  void keep_weight(uint64_t weight);
  // Keeps the tokens that weigh at least `least`.
  void drop_below(uint64_t least);

  // The first id such that the weights up to it, its own included, are above `target` < weight().
  TokenId find(uint64_t target) const;

 private:
  struct Candidate {
    uint64_t key;  // its rank
    uint64_t weight;
  };
  void keep_from(uint64_t last_key);
  bool narrow(std::span<const Candidate> choice, uint64_t& weight);

  std::vector<Candidate> tokens_;  // in rising id
  std::vector<Candidate> border_, scratch_;
  std::vector<uint64_t> keys_;
  std::vector<int32_t> ids_;
  std::vector<float> logits_;
  std::vector<uint64_t> weights_;
};

}  // namespace precast
