// What steps of an engine cost: step_bench ENGINE [THREADS [ROWS [CONTEXT [BATCH [REPEAT]]]]]
//
// Each measured step appends ROWS tokens to each of BATCH sequences that hold CONTEXT tokens already. Prints the least
// and the median wall time, and the process's CPU time, which still says something on a machine that others use too.
// For what is inside: perf record -g.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "plugins/cpu/kernels.h"
#include "runtime/core/cpu_backend.h"

namespace {

using namespace precast;

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

struct Bench {
  Backend& backend;
  int32_t batch, pages_each;
  std::mt19937 random{0};

  // One step of `rows` tokens at `position` for sequences begin … end − 1.
  StepBatch step(int32_t begin, int32_t end, int32_t rows, int32_t position) {
    StepBatch step;
    step.block_tables.resize(backend.limits().groups.size());
    for (int32_t i = begin; i < end; ++i) {
      step.sequences.push_back({static_cast<int32_t>(step.tokens.size()), rows, position,
                                static_cast<int32_t>(step.block_tables[0].size())});
      for (int32_t r = 0; r < rows; ++r) {
        step.tokens.push_back(static_cast<TokenId>(random() % static_cast<uint32_t>(backend.limits().vocab_size)));
      }
      for (std::vector<PageId>& tables : step.block_tables) {
        for (int32_t j = 0; j < pages_each; ++j) tables.push_back(i * pages_each + j);
      }
      step.logit_rows.push_back(static_cast<int32_t>(step.tokens.size()) - 1);
    }
    return step;
  }
};

int run(int argc, char** argv) {
  const auto argument = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  const int threads = argument(2, 0), rows = argument(3, 1), context = argument(4, 0), batch = argument(5, 1),
            repeat = argument(6, 20);
  const auto file = EngineFile::open(argv[1]);
  const auto backend = make_cpu_backend(file, threads);
  const ModelLimits& limits = backend->limits();
  Bench bench{*backend, batch, (context + rows + kPageTokens - 1) / kPageTokens};
  backend->allocate_pages(std::vector<int32_t>(limits.groups.size(), batch * bench.pages_each));
  std::vector<float> logits(static_cast<size_t>(batch) * static_cast<size_t>(limits.vocab_size));
  for (int32_t i = 0; i < batch; ++i) {
    for (int32_t at = 0; at < context; at += limits.max_num_tokens) {
      backend->run(bench.step(i, i + 1, std::min(limits.max_num_tokens, context - at), at), logits.data());
    }
  }
  std::vector<double> wall;
  const double cpu = cpu_seconds();
  for (int i = 0; i < repeat; ++i) {
    const StepBatch step = bench.step(0, batch, rows, context);
    const auto begin = std::chrono::steady_clock::now();
    backend->run(step, logits.data());
    wall.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(wall.begin(), wall.end());
  std::printf("%d rows x %d sequences at %d: least %.2f ms, median %.2f ms, CPU %.2f ms a step\n", rows, batch, context,
              wall.front(), wall[wall.size() / 2], (cpu_seconds() - cpu) * 1e3 / repeat);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: step_bench ENGINE_FILE [THREADS [ROWS [CONTEXT [BATCH [REPEAT]]]]]\n");
    return 2;
  }
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
