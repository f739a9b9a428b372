#include "runtime/core/step_sampler.h"

#include <exception>

namespace precast {
namespace {

void run_one(SampleTask& task, Sampler& sampler) {
  if (task.processors != nullptr) {
    task.result = sampler.sample(task.logits, *task.params, task.random_bits, *task.processors);
    return;
  }
  task.result.token = task.prompt_token;
  task.result.error = sampler.score(task.logits, task.prompt_token, task.top, task.result.logprobs);
}

}  // namespace

StepSampler::StepSampler(int32_t vocab_size, int num_threads) {
  for (int i = 0; i < num_threads; ++i) samplers_.emplace_back(vocab_size);
}

void StepSampler::run(std::span<SampleTask> tasks, Backend& backend) {
  std::vector<std::exception_ptr> errors(samplers_.size());  // a thread's: the pool takes none
  backend.parallel_for(static_cast<int>(tasks.size()), [&](int item, int thread) {
    const auto t = static_cast<size_t>(thread);
    try {
      run_one(tasks[static_cast<size_t>(item)], samplers_[t]);
    } catch (...) {
      errors[t] = std::current_exception();
    }
  });
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace precast
