// Attention alone, one thread: attention_bench [HEAD_SIZE [HEADS_PER_KV [KV_HEADS [LAYERS]]]]
//
// For each dtype of K/V, at 4,096 tokens of context, with pages as KvPool lays them: the time of decode (one row, all
// layers and KV heads: K/V come from memory; hot: the same work on one of them, whose K/V stay in the caches) beside
// reading as many bytes, and the speed of prefill (a tile of rows) beside this thread's peak in bf16.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "plugins/cpu/isa.h"
#include "runtime/core/kv_pool.h"

namespace {

using namespace precast;

constexpr int kContext = 4096;

template <typename F>
double median_ms(int repeat, F f) {
  std::vector<double> times;
  for (int i = 0; i < repeat; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    f();
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::nth_element(times.begin(), times.begin() + repeat / 2, times.end());
  return times[static_cast<size_t>(repeat / 2)];
}

struct Bench {
  const KernelTable& table;
  AttentionShape shape;
  int kv_heads, layers;
  KvPool pool{layers, kv_heads, shape.head_size, shape.kv_dtype};
  std::vector<PageId> pages{};
  std::vector<float> q{}, state{}, partial{}, out{}, scratch{};

  void fill() {
    const int count = kContext / kPageTokens;
    pool.allocate(count);
    std::mt19937 random(0);
    std::normal_distribution<float> normal;
    std::vector<float> k(static_cast<size_t>(shape.head_size)), v = k;
    for (int page = 0; page < count; ++page) {
      pages.push_back(page);
      for (float& x : k) x = normal(random);
      for (float& x : v) x = normal(random);
      for (int block = 0; block < layers * kv_heads; ++block) {
        for (int slot = 0; slot < kPageTokens; ++slot) {
          table.kv_append(k.data(), v.data(), shape.head_size, shape.kv_dtype, pool.block(page, 0, block), slot);
        }
      }
    }
    std::shuffle(pages.begin(), pages.end(), random);
    q.resize(128 * static_cast<size_t>(shape.head_size) * 64);
    for (float& x : q) x = normal(random);
    state.resize(4096 * static_cast<size_t>(attention_partial_floats(shape.head_size)));
    partial = out = state;
    scratch.resize(static_cast<size_t>(table.attention_scratch_floats(shape, 96)) + 16);
  }

  float* aligned_scratch() {
    return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64);
  }

  // The last `rows` positions of the context, for one layer and KV head.
  void attend(int layer, int head, int rows) {
    const void* blocks[kContext / kPageTokens];
    const int64_t lines = int64_t{rows} * shape.heads_per_kv, stride = attention_partial_floats(shape.head_size);
    for (size_t j = 0; j < pages.size(); ++j) blocks[j] = pool.block(pages[j], layer, head);
    for (int64_t i = 0; i < lines; ++i) state[static_cast<size_t>(i * stride + 1)] = 0;
    AttentionQuery query{q.data(), int64_t{shape.heads_per_kv} * shape.head_size, rows, kContext - rows, blocks,
                         nullptr};
    constexpr int kSplitPages = kContextSplit / kPageTokens, kSplits = kContext / kContextSplit;
    for (int split = 0; split < kSplits; ++split) {
      query.ahead = blocks + (split + 1) * kSplitPages;
      query.ahead_pages = split + 1 < kSplits ? kSplitPages : 0;
      table.attention_partial(shape, query, split, partial.data(), aligned_scratch());
      table.attention_merge(shape.head_size, static_cast<int>(lines), state.data(), partial.data());
    }
    for (int64_t i = 0; i < lines; ++i) {
      table.attention_finish(shape.head_size, state.data() + i * stride, out.data() + i * shape.head_size);
    }
  }
};

void run(int argc, char** argv) {
  const auto argument = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  const int head_size = argument(1, 64), heads_per_kv = argument(2, 4), kv_heads = argument(3, 8);
  const int layers = argument(4, 16);
  const KernelTable& table = kernel_table(isa_level());
  const int64_t rounds = 20'000'000;
  double peak = 0;
  const double ms = median_ms(3, [&] { peak = static_cast<double>(table.peak_bf16(rounds)); });
  peak /= ms * 1e6;
  std::printf("%s: %.0f GFLOPS in bf16\n", table.isa, peak);
  for (const KvDType dtype : {KvDType::bf16, KvDType::int8, KvDType::fp8, KvDType::f32}) {
    const char* names[] = {"f32", "bf16", "int8", "fp8"};
    Bench bench{table, {head_size, heads_per_kv, 0.125f, dtype, 0, 0.0f}, kv_heads, layers};
    bench.fill();
    const double bytes = static_cast<double>(kContext / kPageTokens * layers * kv_heads) *
                         static_cast<double>(kv_block_bytes(head_size, dtype));
    const std::byte* all = bench.pool.block(0, 0, 0);
    const double read = median_ms(5, [&] { table.read_bytes(all, static_cast<int64_t>(bytes)); });
    const double decode = median_ms(9, [&] {
      for (int layer = 0; layer < layers; ++layer) {
        for (int head = 0; head < kv_heads; ++head) bench.attend(layer, head, 1);
      }
    });
    const double hot = median_ms(100, [&] { bench.attend(0, 0, 1); }) * layers * kv_heads;
    const int rows = std::max(1, 96 / heads_per_kv);
    const double ops = 4.0 * rows * heads_per_kv * head_size * kContext;
    const double prefill = median_ms(30, [&] { bench.attend(0, 0, rows); });
    std::printf(
        "%-5s decode %6.2f ms, hot %6.2f, reading alone %6.2f (%4.1f GB/s, %3.0f %%); prefill %4.0f GFLOPS (%3.0f "
        "%%)\n",
        names[static_cast<int>(dtype)], decode, hot, read, bytes / read * 1e-6, 100 * read / decode,
        ops / prefill * 1e-6, 100 * ops / prefill * 1e-6 / peak);
  }
}

}  // namespace

int main(int argc, char** argv) {
  run(argc, argv);
  return 0;
}
