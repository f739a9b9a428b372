#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "runtime/core/thread_pool.h"

namespace precast {
namespace {

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// The calling thread's turn in nanoseconds as Linux 6.12 and later tell it; 0: a system that does not.
uint64_t slice() {
  uint64_t attributes[6] = {};
  return syscall(SYS_sched_getattr, 0, attributes, sizeof(attributes), 0) == 0 ? attributes[3] : 0;
}

TEST_CASE("workers take short turns, where the system has them, and leave others as they are") {
  const uint64_t before = slice();
  ThreadPool pool(2);
  std::atomic<uint64_t> of_worker{~uint64_t{0}};
  while (of_worker == ~uint64_t{0}) {
    pool.parallel_for(1000, [&](int, int thread) {
      if (thread == 1) of_worker = slice();
    });
  }
  CHECK(of_worker == (before == 0 ? 0 : 100'000));
  CHECK(slice() == before);
}

TEST_CASE("every item runs once, and its writes are visible afterwards") {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    CHECK(pool.num_threads() == threads);
    for (int count = 0; count < 200; ++count) {
      std::vector<int> runs(static_cast<size_t>(count), 0);  // plain ints: a data race here is the sanitizer's to find
      pool.parallel_for(count, [&](int item, int) { ++runs[static_cast<size_t>(item)]; });
      CHECK(std::accumulate(runs.begin(), runs.end(), 0) == count);
    }
  }
}

TEST_CASE("a thread's number is its own") {
  ThreadPool pool(4);
  std::vector<int> sums(4, 0);  // one slot a thread, unprotected
  for (int job = 0; job < 500; ++job) {
    pool.parallel_for(7, [&](int, int thread) { ++sums[static_cast<size_t>(thread)]; });
  }
  CHECK(std::accumulate(sums.begin(), sums.end(), 0) == 3500);
}

TEST_CASE("workers that sleep are woken") {
  ThreadPool pool(3);
  for (int job = 0; job < 20; ++job) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));  // longer than they spin
    std::atomic<int> runs{0};
    pool.parallel_for(50, [&](int, int) { runs.fetch_add(1); });
    CHECK(runs.load() == 50);
  }
}

TEST_CASE("results of one job are the input of the next") {
  ThreadPool pool(3);
  std::vector<int> values(1000, 0);
  for (int job = 0; job < 300; ++job) {
    pool.parallel_for(10, [&](int item, int) {
      for (int i = item * 100; i < (item + 1) * 100; ++i) values[static_cast<size_t>(i)] += job;
    });
    // Other items take what these wrote.
    pool.parallel_for(5, [&](int item, int) {
      for (int i = item * 200; i < (item + 1) * 200; ++i) values[static_cast<size_t>(i)] += 1;
    });
  }
  for (const int value : values) CHECK(value == 300 * 299 / 2 + 300);
}

TEST_CASE("a thread that comes late to a small job takes nothing of it when a large one follows") {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> runs(64);
  for (int round = 0; round < 20000; ++round) {
    pool.parallel_for(2,
                      [&](int item, int) { runs[static_cast<size_t>(item)].fetch_add(1, std::memory_order_relaxed); });
    pool.parallel_for(64,
                      [&](int item, int) { runs[static_cast<size_t>(item)].fetch_add(1, std::memory_order_relaxed); });
  }
  for (size_t item = 0; item < runs.size(); ++item) CHECK(runs[item].load() == (item < 2 ? 40000 : 20000));
}

TEST_CASE("an idle pool uses no CPU") {
  ThreadPool pool(4);
  pool.parallel_for(100, [](int, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // they stop spinning
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(cpu_seconds() - before < 0.1);  // spinning would have taken 0.9 on a free machine
}

TEST_CASE("a pool that did nothing ends") {
  for (int i = 0; i < 50; ++i) ThreadPool pool(5);
}

}  // namespace
}  // namespace precast
