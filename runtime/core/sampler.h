// From one row of logits to one token. A row's outcome depends on the row, the parameters and the random bits alone.
//
// Meaning, in this order, over tokens ranked by (logit falling, id rising):
//   temperature  p ∝ exp(logit / temperature); below 1e-5 the first of the ranking is taken (greedy)
//   top_k        the first k stay
//   top_p        of those, the shortest prefix whose share of their probability reaches top_p stays
//   min_p        of those, the tokens with p ≥ min_p · p(first) stay
// and one of what stays is drawn by inverse transform, in rising id.
//
// The vocabulary is never sorted. Probabilities are integers, floor(2^40 · p / p(first)): their sums are exact in any
// order, so that selection by partition and a naive sort give the same set. Tokens below 2^-40 of the first are never
// drawn.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "runtime/core/core.h"

namespace precast {

struct Sample {
  TokenId token = -1;
  TokenLogprobs logprobs;       // empty unless params.logprobs
  const char* error = nullptr;  // set: the row has no answer, and token is −1
};

// e^x for x ≤ 0, relative error below 1e-6; x below −87 counts as −87.
float exp_nonpositive(float x);

class Sampler {
 public:
  explicit Sampler(int32_t vocab_size);

  // `logits` [vocab_size] are overwritten. `forbidden` tokens are not chosen (min_tokens). Logprobs are of the row as
  // it came in: log-softmax, summed over fixed tiles of the vocabulary. NaN or infinite logits are an error.
  Sample sample(std::span<float> logits, const SamplingParams& params, uint64_t random_bits,
                std::span<const TokenId> forbidden);

 private:
  TokenId draw(std::span<const float> logits, float max, const SamplingParams& params, uint64_t random_bits);
  void weigh(std::span<const float> logits, float max, float inverse_temperature);
  uint64_t last_kept(std::span<const float> logits, const SamplingParams& params);

  static constexpr int kBuckets = 256;
  std::vector<uint64_t> weights_;  // [vocab_size], see above
  std::vector<uint8_t> buckets_;   // [vocab_size] rises as the logit falls: a coarse rank
  std::vector<int32_t> bucket_counts_;
  std::vector<uint64_t> bucket_weights_;
  std::vector<uint64_t> candidates_;  // rank keys
};

}  // namespace precast
