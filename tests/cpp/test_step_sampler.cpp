#include <doctest/doctest.h>

#include <random>

#include "runtime/core/philox.h"
#include "runtime/core/step_sampler.h"
#include "runtime/core/thread_pool.h"

namespace precast {
namespace {

// Only its threads are used.
class Threads final : public Backend {
 public:
  explicit Threads(int num_threads) : pool_(num_threads) {}
  const ModelLimits& limits() const override { return limits_; }
  void allocate_pages(const std::vector<int32_t>&) override {}
  void load_pages(const std::vector<PageLoad>&) override {}
  std::span<const uint8_t> page(int32_t, PageId) const override { return {}; }
  void run(const StepBatch&, float*) override {}
  int num_threads() const override { return pool_.num_threads(); }
  void parallel_for(int count, const std::function<void(int, int)>& fn) override { pool_.parallel_for(count, fn); }

 private:
  ModelLimits limits_;
  ThreadPool pool_;
};

TEST_CASE("rows are sampled alike on any number of threads") {
  constexpr int32_t kVocab = 3000;
  constexpr size_t kRows = 40;
  std::mt19937 random(7);
  std::vector<float> logits(kRows * kVocab);
  std::normal_distribution<float> normal(0, 4);
  for (float& x : logits) x = normal(random);
  logits[3 * kVocab + 17] = std::numeric_limits<float>::infinity();
  const std::vector<TokenId> prompt = {1, 2, 3, 2, 1};
  std::vector<SamplingParams> params(kRows);
  std::vector<LogitsProcessors> processors;
  for (size_t i = 0; i < kRows; ++i) {
    params[i].temperature = i % 5 == 0 ? 0 : 0.8;
    params[i].top_p = i % 3 == 0 ? 0.9 : 1;
    params[i].top_k = i % 4 == 0 ? 30 : 0;
    params[i].repetition_penalty = 1.2;
    params[i].logprobs = 4;
    processors.emplace_back(params[i], prompt, std::vector<TokenId>{});
  }
  const auto run = [&](int num_threads) {
    std::vector<float> rows = logits;
    std::vector<SampleTask> tasks(kRows);
    for (size_t i = 0; i < kRows; ++i) {
      tasks[i].logits = std::span(rows).subspan(i * kVocab, kVocab);
      tasks[i].params = &params[i];
      tasks[i].random_bits = random_bits(1, 0, static_cast<uint32_t>(i));
      tasks[i].prompt_token = 5;
      tasks[i].top = 2;
      if (i % 7 != 6) tasks[i].processors = &processors[i];  // else a token of the prompt is scored
    }
    Threads backend(num_threads);
    StepSampler(kVocab, backend.num_threads()).run(tasks, backend);
    std::vector<Sample> samples;
    for (SampleTask& task : tasks) samples.push_back(std::move(task.result));
    return samples;
  };
  const std::vector<Sample> one = run(1);
  CHECK(one[3].error != nullptr);
  CHECK(one[6].token == 5);
  CHECK(one[6].logprobs.top.size() == 2);
  for (const int num_threads : {2, 5}) {
    const std::vector<Sample> many = run(num_threads);
    for (size_t i = 0; i < kRows; ++i) {
      CHECK(many[i].token == one[i].token);
      CHECK(many[i].logprobs.logprob == one[i].logprobs.logprob);
      REQUIRE(many[i].logprobs.top.size() == one[i].logprobs.top.size());
      for (size_t j = 0; j < many[i].logprobs.top.size(); ++j) {
        CHECK(many[i].logprobs.top[j].token == one[i].logprobs.top[j].token);
      }
    }
  }
}

}  // namespace
}  // namespace precast
