// The rows of one step, spread over threads: a row's outcome depends on nothing but what its task names.
#pragma once
#include <span>
#include <vector>

#include "runtime/core/core.h"
#include "runtime/core/sampler.h"

namespace precast {

struct SampleTask {
  Sequence* sequence = nullptr;
  std::span<float> logits;  // [vocab_size], overwritten
  const SamplingParams* params = nullptr;
  // Either the next token is sampled …
  const LogitsProcessors* processors = nullptr;
  uint64_t random_bits = 0;
  // … or, without processors, a token of the prompt is scored.
  TokenId prompt_token = -1;
  int32_t top = 0;

  Sample result;
};

class StepSampler {
 public:
  StepSampler(int32_t vocab_size, int num_threads);

  // Fills the results, on the threads of `backend`. Throws std::bad_alloc.
  void run(std::span<SampleTask> tasks, Backend& backend);

 private:
  std::vector<Sampler> samplers_;  // [num_threads]
};

}  // namespace precast
