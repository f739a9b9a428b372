// From one row of logits to one token. A row's outcome depends on the row, the parameters, what the sequence holds and
// the random bits alone.
//
// Meaning, in this order, over tokens ranked by (logit falling, id rising):
//   processors   logits_processors.h: bias, penalties, bans
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

#include "runtime/core/candidates.h"
#include "runtime/core/core.h"
#include "runtime/core/logits_processors.h"
#include "runtime/core/vocab_scan.h"

namespace precast {

struct Sample {
  TokenId token = -1;
  TokenLogprobs logprobs;       // when params ask for them, or rank sequences by them (best_of)
  const char* error = nullptr;  // set: the row has no answer, and token is −1
};

// One thread's; it keeps buffers, and nothing from row to row.
class Sampler {
 public:
  explicit Sampler(int32_t vocab_size) : scan_(vocab_size) {}

  // `logits` [vocab_size] are overwritten. Logprobs are of the row as it came in: its log-softmax, whose sum is one of
  // integers, as above. NaN or infinite logits are an error.
  Sample sample(std::span<float> logits, const SamplingParams& params, uint64_t random_bits,
                const LogitsProcessors& processors);

  // The log-probability of `token` in a row, and of the `top` most likely tokens. An error as above, or null.
  const char* score(std::span<const float> logits, TokenId token, int32_t top, TokenLogprobs& logprobs);

 private:
  double normalizer();
  std::vector<TokenLogprob> most_likely(std::span<const float> logits, int32_t count, double normalizer);
  TokenId draw(std::span<const float> logits, const SamplingParams& params, uint64_t random_bits);
  void filter(std::span<const float> logits, const SamplingParams& params, float inverse_temperature);
  void collect(std::span<const float> logits, const SamplingParams& params, float inverse_temperature, double depth);
  template <typename Enough>
  void collect_until(std::span<const float> logits, const SamplingParams& params, float inverse_temperature,
                     double deepest, const Enough& enough);

  VocabScan scan_;
  Candidates candidates_;
  std::vector<ModelLogit> changed_;
  std::vector<int32_t> ids_;
  std::vector<uint64_t> keys_;
};

}  // namespace precast
