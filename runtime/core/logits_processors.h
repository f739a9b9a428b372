// What a request changes in the model's logits before a token is chosen. One object a sequence; it remembers what the
// sequence holds. Its work grows with the tokens that have occurred, not with the vocabulary.
//
// Meaning, in this order; each line takes what the one before gave, rounds to f32 and stays finite:
//   logit_bias          logit + bias
//   penalties           repetition, for tokens of prompt and output: logit / penalty above zero, else logit · penalty;
//                       then, for tokens of the output: − frequency_penalty · (times they occurred) − presence_penalty
//   bans                −∞: until min_tokens, what would end the request; the last token of each of bad_words whose
//                       other tokens are the latest of prompt and output
#pragma once
#include <span>
#include <unordered_map>
#include <vector>

#include "runtime/core/core.h"

namespace precast {

// A logit that was changed, as the model gave it.
struct ModelLogit {
  TokenId token;
  float logit;
};

class LogitsProcessors {
 public:
  LogitsProcessors() = default;  // changes nothing
  // `stop_tokens`: those that end the request, eos tokens included unless they are ignored.
  LogitsProcessors(const SamplingParams& params, std::span<const TokenId> prompt, std::vector<TokenId> stop_tokens);

  // A token of the output.
  void push(TokenId token);

  // Changes `logits` [vocab_size] for the next token. Appends every change to `changed`; a token may come several
  // times, first as the model gave it.
  void apply(std::span<float> logits, std::vector<ModelLogit>& changed) const;

 private:
  struct Occurrence {
    TokenId token;
    int32_t in_output;  // times
  };

  void count(TokenId token, int32_t in_output);
  void penalize(std::span<float> logits, std::vector<ModelLogit>& changed) const;
  void ban_bad_words(std::span<float> logits, std::vector<ModelLogit>& changed) const;

  double repetition_ = 1, presence_ = 0, frequency_ = 0;
  std::vector<Occurrence> occurred_;           // in order of their first time; empty when nothing is penalized
  std::unordered_map<TokenId, size_t> where_;  // token → its place in occurred_

  std::vector<std::pair<TokenId, double>> bias_;
  std::vector<std::vector<TokenId>> bad_words_;
  size_t longest_bad_word_ = 0;
  std::vector<TokenId> latest_;  // the end of prompt and output, at least longest_bad_word_ − 1 tokens of it

  std::vector<TokenId> stop_tokens_;
  int32_t before_min_tokens_ = 0;  // tokens that are still to come until a stop token may
};

}  // namespace precast
