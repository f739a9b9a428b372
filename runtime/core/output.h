// One request's way out: decides when it ends, and cuts text, token ids and logprobs together.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "runtime/core/core.h"
#include "runtime/core/detokenizer.h"
#include "runtime/core/logits_processors.h"
#include "runtime/core/sampler.h"

namespace precast {

class Output {
 public:
  // `index`: which of the request's outputs. `eos`: the engine's end-of-sequence tokens. A token that is both stop and
  // eos ends as either.
  Output(const Request& request, int32_t index, std::span<const TokenId> eos, std::shared_ptr<const VocabBytes> vocab);

  const SamplingParams& params() const { return params_; }
  // What is to be done with the logits of the next token.
  const LogitsProcessors& processors() const { return processors_; }
  // The prompt's, all of them; they go out with the first delta, which waits for them when they are wanted.
  void set_prompt_logprobs(std::shared_ptr<const std::vector<TokenLogprobs>> logprobs);
  // Takes a token that was sampled `now`; afterwards finished() may hold.
  void push(Sample&& sample, Clock::time_point now);
  // Ends the request from outside: cancelled, error, or length when there is nothing to generate.
  void finish(FinishReason reason, std::string error = {});
  int32_t num_sampled() const { return sampled_; }
  bool finished() const { return reason_ != FinishReason::none; }

  void admitted(Clock::time_point now) { admitted_ = now; }
  // What is ready since the last call. Returns false when there is nothing to say yet: nothing new, or the whole output
  // is wanted at once.
  bool take(Clock::time_point now, OutputDelta& delta);

 private:
  int keep(Sample&& sample, double latency_seconds);
  void begin(OutputDelta& delta);
  void fill(Clock::time_point now, OutputDelta& delta) const;

  RequestId id_;
  int32_t index_;
  SamplingParams params_;
  int32_t prompt_tokens_;
  int32_t max_tokens_;
  std::vector<TokenId> stop_tokens_;  // eos too, unless ignored
  LogitsProcessors processors_;
  std::shared_ptr<const VocabBytes> vocab_;
  Detokenizer detokenizer_;
  std::vector<TokenId> echo_;  // the prompt, until it has gone out
  std::shared_ptr<const std::vector<TokenLogprobs>> prompt_logprobs_;
  bool begun_ = false;  // something has gone out

  int32_t sampled_ = 0;
  double cumulative_logprob_ = 0;
  std::vector<TokenId> tokens_;  // pushed to the detokenizer and not given out yet
  std::vector<TokenLogprobs> logprobs_;
  std::vector<double> token_latencies_;
  FinishReason reason_ = FinishReason::none;
  std::string error_;
  std::string stop_string_;
  TokenId stop_token_ = -1;
  Clock::time_point enqueued_, admitted_{}, first_token_{}, last_token_{};
};

}  // namespace precast
