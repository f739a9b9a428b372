// What sampling costs beside a decode step: sampling_bench ENGINE [THREADS [BATCH [CONTEXT [IDS_FILE]]]]
//
// Decodes one token of each of BATCH sequences that hold CONTEXT tokens (of IDS_FILE, token ids of a text separated by
// spaces, each sequence from another place on; without it, random tokens, whose distributions are flatter), then
// samples from the logits of that step in several ways. Prints medians of wall and CPU time of the step and, for each
// way, of one row and of all BATCH rows on one thread and on the pool, with their shares of the step. CPU time says
// something on a machine that others use too; with THREADS 1 nobody spins in it.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "plugins/cpu/kernels.h"
#include "runtime/core/cpu_backend.h"
#include "runtime/core/philox.h"
#include "runtime/core/step_sampler.h"

namespace {

using namespace precast;

struct Times {
  double wall, cpu;  // ms, medians
};

double now_ms(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return 1e3 * static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_nsec);
}

Times measure(int repeat, const auto& prepare, const auto& timed) {
  std::vector<double> wall, cpu;
  for (int i = 0; i < repeat; ++i) {
    prepare();
    const double wall_begin = now_ms(CLOCK_MONOTONIC), cpu_begin = now_ms(CLOCK_PROCESS_CPUTIME_ID);
    timed();
    cpu.push_back(now_ms(CLOCK_PROCESS_CPUTIME_ID) - cpu_begin);
    wall.push_back(now_ms(CLOCK_MONOTONIC) - wall_begin);
  }
  std::sort(wall.begin(), wall.end());
  std::sort(cpu.begin(), cpu.end());
  return {wall[wall.size() / 2], cpu[cpu.size() / 2]};
}

struct Bench {
  std::shared_ptr<Backend> backend;
  int32_t batch, context;
  std::vector<std::vector<TokenId>> tokens;  // [batch][context + 1]
  std::vector<float> logits, work;

  Bench(std::shared_ptr<Backend> b, int32_t batch_size, int32_t context_tokens, const char* ids_file)
      : backend(std::move(b)), batch(batch_size), context(context_tokens) {
    std::vector<TokenId> text;
    if (ids_file != nullptr) {
      std::ifstream in(ids_file);
      for (TokenId id; in >> id;) text.push_back(id);
    }
    std::mt19937 random(0);
    for (int32_t i = 0; i < batch; ++i) {
      std::vector<TokenId>& own = tokens.emplace_back();
      const size_t from = random() % std::max<size_t>(text.size(), 1);
      for (int32_t j = 0; j <= context; ++j) {
        const auto vocab = static_cast<uint32_t>(backend->limits().vocab_size);
        own.push_back(text.empty() ? static_cast<TokenId>(random() % vocab)
                                   : text[(from + static_cast<size_t>(j)) % text.size()]);
      }
    }
    const size_t row = static_cast<size_t>(backend->limits().vocab_size);
    logits.resize(static_cast<size_t>(batch) * row);
    work.resize(logits.size());
  }

  int32_t pages_each() const { return context / kPageTokens + 1; }

  // `rows` tokens at `position` of sequences begin … end − 1.
  StepBatch step(int32_t begin, int32_t end, int32_t rows, int32_t position) {
    StepBatch step;
    step.clear(backend->limits().groups.size());
    for (int32_t i = begin; i < end; ++i) {
      step.sequences.push_back({static_cast<int32_t>(step.tokens.size()), rows, position, (i - begin) * pages_each()});
      const auto from = tokens[static_cast<size_t>(i)].begin() + position;
      step.tokens.insert(step.tokens.end(), from, from + rows);
      for (std::vector<PageId>& table : step.block_tables) {
        for (int32_t j = 0; j < pages_each(); ++j) table.push_back(i * pages_each() + j);
      }
      step.logit_rows.push_back(static_cast<int32_t>(step.tokens.size()) - 1);
    }
    return step;
  }

  Times decode() {
    backend->allocate_pages(std::vector(backend->limits().groups.size(), batch * pages_each()));
    for (int32_t i = 0; i < batch; ++i) {
      for (int32_t at = 0; at < context;) {
        const int32_t rows = std::min(backend->limits().max_num_tokens, context - at);
        backend->run(step(i, i + 1, rows, at), logits.data());
        at += rows;
      }
    }
    const StepBatch decode = step(0, batch, 1, context);
    return measure(20, [] {}, [&] { backend->run(decode, logits.data()); });
  }

  void sample(const char* name, const SamplingParams& params, const Times& step) {
    const auto vocab = static_cast<size_t>(backend->limits().vocab_size);
    std::vector<LogitsProcessors> processors;
    for (int32_t i = 0; i < batch; ++i) {
      const std::vector<TokenId>& own = tokens[static_cast<size_t>(i)];
      const auto half = own.begin() + context / 2;
      processors.emplace_back(params, std::span(own.begin(), half), std::vector<TokenId>{});
      for (auto token = half; token != own.end(); ++token) processors.back().push(*token);
    }
    std::vector<SampleTask> tasks(static_cast<size_t>(batch));
    const auto prepare = [&] {  // the logits lie where a step leaves them: not in the nearest caches
      std::copy(logits.begin(), logits.end(), work.begin());
      for (size_t i = 0; i < tasks.size(); ++i) {
        tasks[i].logits = std::span(work).subspan(i * vocab, vocab);
        tasks[i].params = &params;
        tasks[i].processors = &processors[i];
        tasks[i].random_bits = random_bits(1, 0, static_cast<uint32_t>(i));
      }
    };
    StepSampler sampler(backend->limits().vocab_size, backend->num_threads());
    struct OneThread final : Backend {
      explicit OneThread(const ModelLimits& l) : own(l) {}
      const ModelLimits& limits() const override { return own; }
      void allocate_pages(const std::vector<int32_t>&) override {}
      void load_pages(const std::vector<PageLoad>&) override {}
      std::span<const uint8_t> page(int32_t, PageId) const override { return {}; }
      void run(const StepBatch&, float*) override {}
      ModelLimits own;
    } one(backend->limits());
    std::printf("%s\n", name);
    const auto print = [&](const char* what, const Times& times) {
      std::printf("  %-20s wall %8.3f ms %6.2f %%   CPU %8.3f ms %6.2f %%\n", what, times.wall,
                  100 * times.wall / step.wall, times.cpu, 100 * times.cpu / step.cpu);
    };
    print("one row", measure(50, prepare, [&] { sampler.run(std::span(tasks).first(1), one); }));
    print("all rows, 1 thread", measure(20, prepare, [&] { sampler.run(tasks, one); }));
    print("all rows, the pool", measure(20, prepare, [&] { sampler.run(tasks, *backend); }));
  }
};

int run(int argc, char** argv) {
  const auto argument = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  const int threads = argument(2, 0), batch = argument(3, 16), context = argument(4, 256);
  Bench bench(make_cpu_backend(EngineFile::open(argv[1]), threads), batch, context, argc > 5 ? argv[5] : nullptr);
  const Times step = bench.decode();
  std::printf("decode step, %d sequences at %d, vocabulary %d, %d threads: wall %.2f ms, CPU %.2f ms\n", batch, context,
              bench.backend->limits().vocab_size, bench.backend->num_threads(), step.wall, step.cpu);
  SamplingParams greedy;
  greedy.temperature = 0;
  bench.sample("greedy", greedy, step);
  SamplingParams plain;
  bench.sample("temperature 1", plain, step);
  SamplingParams top_p;
  top_p.top_p = 0.95;
  bench.sample("top-p 0.95", top_p, step);
  SamplingParams all;
  all.top_k = 50;
  all.repetition_penalty = 1.1;
  all.presence_penalty = 0.5;
  all.frequency_penalty = 0.2;
  all.logprobs = 20;
  bench.sample("top-k 50, three penalties, 20 logprobs", all, step);
  all.top_p = 0.9;
  all.temperature = 0.7;
  all.min_p = 0.02;
  bench.sample("the same, top-p 0.9, min-p 0.02, temperature 0.7", all, step);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s ENGINE_FILE [THREADS [BATCH [CONTEXT [IDS_FILE]]]]\n", argv[0]);
    return 2;
  }
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
}
