// Speed of the linears of one ISA level beside the machine's limits, measured in the same run.
//   linear_bench [LEVEL] [THREADS] [KIND ...]      kinds: i8 (per token), i8g32, i8g64, i8g128, bf16, f32
// The shapes are those of a 1-B Llama. One row prints the weight's GB/s, several rows print GOPS (2 operations a
// product) and tokens/s of all its layers; each linear runs over copies of its weight that together exceed the caches.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "plugins/cpu/isa.h"
#include "plugins/cpu/kernels.h"
#include "runtime/core/machine_limits.h"

namespace {

using precast::KernelTable;
using precast::kPanel;
using precast::LinearOut;
using precast::LinearWeights;
using precast::QuantizedTile;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Zeroed memory in huge pages where the system has them.
struct Pages {
  explicit Pages(size_t bytes) : size(bytes) {
    data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) std::exit((std::perror("mmap"), 1));
    madvise(data, size, MADV_HUGEPAGE);
  }
  Pages(const Pages&) = delete;
  ~Pages() { munmap(data, size); }
  void* data;
  size_t size;
};

// Calls work(i) for i in [0, count) from several threads.
template <typename Work>
void in_parallel(int threads, int count, const Work& work) {
  std::atomic<int> next{0};
  const auto run = [&] {
    for (int i; (i = next.fetch_add(1)) < count;) work(i);
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(run);
  run();
  for (std::thread& t : others) t.join();
}

template <typename Work>
double median_seconds(int repeats, const Work& work) {
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    const double start = now();
    work();
    seconds.push_back(now() - start);
  }
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return seconds[static_cast<size_t>(repeats) / 2];
}

struct Kind {
  const char* name;
  double weight_bytes;
  bool quantized;
  int group;
};
constexpr Kind kKinds[] = {{"i8", 1, true, 0},       {"i8g32", 1, true, 32}, {"i8g64", 1, true, 64},
                           {"i8g128", 1, true, 128}, {"bf16", 2, false, 0},  {"f32", 4, false, 0}};

struct Shape {
  int n, k, calls;
};
constexpr Shape kShapes[] = {{2048, 2048, 1}, {3072, 2048, 1}, {16384, 2048, 1}, {2048, 8192, 1}};
constexpr int kLayers = 16;

struct Activations {
  std::vector<float> x;
  std::vector<int8_t> q;
  std::vector<float> scale;
  std::vector<int32_t> sum;
};

// Rows of a tile when as few tiles as hold them share the rows.
int even_tile_rows(int rows, int most) {
  const int tiles = (rows + most - 1) / most;
  return (rows + tiles - 1) / tiles;
}

// Seconds of one linear of `rows` rows.
double linear_seconds(const KernelTable& table, const Kind& kind, const Shape& shape, int rows, int threads,
                      size_t block_bytes) {
  const auto [n, k, calls] = shape;
  const auto weight_bytes = static_cast<size_t>(kind.weight_bytes * n * k);
  const size_t copies = std::max<size_t>(1, size_t{160'000'000} / weight_bytes);
  const Pages weight(weight_bytes * copies);
  if (kind.quantized) {
    uint64_t state = 1;
    for (size_t i = 0; i < weight.size / 8; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      static_cast<uint64_t*>(weight.data)[i] = (state ^ state >> 29) & 0x7E7E7E7E7E7E7E7Eu;
    }
  } else {
    std::memset(weight.data, 0x3C, weight.size);  // small positive numbers, of bf16 and f32 alike
  }
  const std::vector<float> weight_scale(static_cast<size_t>(n), 0.01f);
  Activations a;
  a.x.resize(static_cast<size_t>(rows) * k);
  for (size_t i = 0; i < a.x.size(); ++i) a.x[i] = static_cast<float>(i * 37 % 255) - 127;
  const int groups = kind.group == 0 ? 1 : k / kind.group;
  a.q.resize(a.x.size());
  a.scale.resize(static_cast<size_t>(rows) * groups);
  a.sum.resize(a.scale.size());
  const int tile_rows = even_tile_rows(rows, kind.quantized ? table.tile_rows_i8 : table.tile_rows_float);
  std::vector<QuantizedTile> tiles;
  for (int row = 0; kind.quantized && row < rows; row += tile_rows) {
    tiles.push_back(
        {a.q.data() + int64_t{row} * k, a.scale.data() + int64_t{row} * groups, a.sum.data() + int64_t{row} * groups});
    table.quantize_tile(a.x.data() + int64_t{row} * k, k, std::min(tile_rows, rows - row), k, k, kind.group,
                        tiles.back());
  }
  const int call_rows = tile_rows * (kind.quantized ? precast::kCallTilesI8 : 1);
  std::vector<float> y(static_cast<size_t>(rows) * n);
  const int panels = n / kPanel;
  const int most = std::max(1, panels / (4 * threads));
  const int fit = static_cast<int>(static_cast<double>(block_bytes) / (kind.weight_bytes * kPanel * k));
  const int block = (std::clamp(fit, 1, most) + 1) / 2 * 2;
  const int blocks = (panels + block - 1) / block;
  size_t copy = 0;
  return median_seconds(rows > 64 ? 3 : 9,
                        [&] {
                          const char* data = static_cast<const char*>(weight.data) + copy++ % copies * weight_bytes;
                          const LinearWeights w{data, weight_scale.data(), n, k, kind.group};
                          in_parallel(threads, blocks, [&](int b) {
                            const int begin = b * block, end = std::min(panels, begin + block);
                            for (int row = 0; row < rows; row += call_rows) {
                              const int count = std::min(call_rows, rows - row);
                              const LinearOut out{
                                  y.data() + int64_t{row} * n, n, nullptr, nullptr, precast::Epilogue::none,
                                  precast::Activation::silu};
                              if (kind.quantized) {
                                table.linear_i8(w, &tiles[static_cast<size_t>(row / tile_rows)], count, tile_rows,
                                                begin, end, out);
                              } else {
                                const auto kernel = kind.weight_bytes == 2 ? table.linear_bf16 : table.linear_f32;
                                kernel(w, a.x.data() + int64_t{row} * k, k, count, begin, end, out);
                              }
                            }
                          });
                        }) *
         calls;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string level = argc > 1 ? argv[1] : precast::isa_level();
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
  const char* block_kib = std::getenv("BLOCK_KIB");
  const size_t block_bytes = static_cast<size_t>(block_kib != nullptr ? std::atoi(block_kib) : 128) << 10;
  const KernelTable& table = precast::kernel_table(level);
  precast::ThreadPool pool(threads);
  const precast::MachineLimits limits = precast::measure_machine_limits(table, pool);
  std::printf("%s, %d threads: reads %.1f GB/s; %.0f GOPS of int8, %.0f of bf16, %.0f of f32\n", level.c_str(), threads,
              limits.read_bytes / 1e9, limits.i8_ops / 1e9, limits.bf16_ops / 1e9, limits.f32_ops / 1e9);
  for (const Kind& kind : kKinds) {
    const bool wanted =
        argc <= 3 || std::any_of(argv + 3, argv + argc, [&](const char* a) { return std::strcmp(a, kind.name) == 0; });
    if (!wanted) continue;
    for (const int rows : {1, 2, 4, 8, 16, 32, 128, 512}) {
      double seconds = 0, products = 0;
      for (const Shape& shape : kShapes) {
        seconds += linear_seconds(table, kind, shape, rows, threads, block_bytes);
        products += double{1} * shape.n * shape.k;
      }
      std::printf("%-7s %3d rows: %7.1f GOPS  %6.1f GB/s of weights  %7.1f tokens/s\n", kind.name, rows,
                  2 * products * rows / seconds / 1e9, products * kind.weight_bytes / seconds / 1e9,
                  rows / (seconds * kLayers));
      std::fflush(stdout);
    }
  }
  return 0;
}
