#include "runtime/core/machine_limits.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "runtime/core/memory.h"

namespace precast {

namespace {

// Rounds are short: on a machine with other work all threads have to run through one.
constexpr int kPeakRounds = 40;
constexpr double kPeakSeconds = 0.002;  // of a round: long beside starting it
constexpr int kReadRounds = 3;
constexpr int64_t kReadBytes = int64_t{256} << 20;  // the caches of large servers hold less for a core
constexpr int64_t kTimedBytes = int64_t{32} << 20;
constexpr int64_t kPieceBytes = int64_t{512} << 10;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double peak_ops(int64_t (*peak)(int64_t rounds), ThreadPool& pool) {
  const int threads = pool.num_threads();
  int64_t rounds = 1000;
  double best = 0;
  for (int i = 0; i < kPeakRounds; ++i) {
    std::atomic<int64_t> ops{0};
    const auto begin = std::chrono::steady_clock::now();
    pool.parallel_for(threads, [&](int, int) { ops += peak(rounds); });
    const double seconds = seconds_since(begin);
    best = std::max(best, static_cast<double>(ops) / seconds);
    // Towards rounds of kPeakSeconds; the first ones also wake the threads.
    rounds = std::max<int64_t>(
        1000, static_cast<int64_t>(static_cast<double>(rounds) * std::min(100.0, kPeakSeconds / seconds)));
  }
  return best;
}

}  // namespace

MachineLimits measure_machine_limits(const KernelTable& kernels, ThreadPool& pool) {
  MachineLimits limits;
  limits.i8_ops = peak_ops(kernels.peak_i8, pool);
  limits.bf16_ops = peak_ops(kernels.peak_bf16, pool);
  limits.f32_ops = peak_ops(kernels.peak_f32, pool);
  const Memory memory(static_cast<size_t>(kReadBytes));
  std::memset(memory.data(), 1, memory.size());
  for (int64_t at = 0; at < kReadRounds * kReadBytes; at += kTimedBytes) {
    const std::byte* data = memory.data() + at % kReadBytes;
    const auto begin = std::chrono::steady_clock::now();
    pool.parallel_for(static_cast<int>(kTimedBytes / kPieceBytes),
                      [&](int piece, int) { kernels.read_bytes(data + piece * kPieceBytes, kPieceBytes); });
    limits.read_bytes = std::max(limits.read_bytes, static_cast<double>(kTimedBytes) / seconds_since(begin));
  }
  return limits;
}

}  // namespace precast
