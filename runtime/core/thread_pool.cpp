#include "runtime/core/thread_pool.h"

#include <immintrin.h>
#include <unistd.h>

#include <utility>

#include "runtime/core/short_slices.h"

namespace precast {

namespace {

// About 10,000 pauses are 0.3 to 0.5 ms: longer than the gaps inside a step, shorter than anyone notices. To sleep
// sooner costs a wake-up each time that another thread is late (beside as many busy processes as CPUs, Zen 1: 2,000
// pauses 5 % slower, 100 pauses 30 to 80 %); spinning for long takes the CPU from the very thread that is waited for
// where there are more threads than CPUs (200,000: 15 to 30 % slower).
constexpr int kSpins = 10000;

// An item number that is beyond every count: no ticket of the job is to be had.
constexpr uint64_t kClosed = 0xFFFFFFFFu;

// Until `value` differs from `old`.
uint32_t wait_for_change(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    const uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    _mm_pause();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : process_(getpid()) {
  try {
    for (int thread = 1; thread < num_threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
  } catch (...) {  // no more threads to be had: those that started must not outlive us
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  if (getpid() != process_) {
    // Forked. Threads of another process can neither be joined nor detached, so their handles are left behind.
    new std::vector<std::thread>(std::move(workers_));
    return;
  }
  stop_.store(true, std::memory_order_relaxed);
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(Call call, const void* fn, int count) {
  // All items of the job before are done, but a thread that comes late may still hold that job's last ticket. Were
  // count_ raised while ticket_ is as it was, it would take an item that the job never had. So the tickets are closed
  // first: who took one before the exchange read the old fields, who comes after it fails.
  const uint32_t job = job_.load(std::memory_order_relaxed) + 1;
  ticket_.exchange(uint64_t{job - 1} << 32 | kClosed, std::memory_order_acq_rel);
  call_.store(call, std::memory_order_relaxed);
  fn_.store(fn, std::memory_order_relaxed);
  count_.store(count, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  ticket_.store(uint64_t{job} << 32, std::memory_order_release);
  job_.store(job, std::memory_order_release);
  job_.notify_all();
  grab_items(job, 0);
  for (uint32_t done = done_.load(std::memory_order_acquire); done != static_cast<uint32_t>(count);) {
    done = wait_for_change(done_, done);
  }
}

void ThreadPool::work(int thread) {
  take_short_slices();
  uint32_t job = 0;
  for (;;) {
    job = wait_for_change(job_, job);
    if (stop_.load(std::memory_order_relaxed)) return;
    grab_items(job, thread);
  }
}

void ThreadPool::grab_items(uint32_t job, int thread) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(ticket >> 32) == job) {
    const Call call = call_.load(std::memory_order_relaxed);
    const void* fn = fn_.load(std::memory_order_relaxed);
    const auto count = static_cast<uint32_t>(count_.load(std::memory_order_relaxed));
    const auto item = static_cast<uint32_t>(ticket);
    if (item >= count) return;
    // Success says that the job is still this one and that the item is ours; the job cannot end before done_ says so.
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire))
      continue;
    call(fn, static_cast<int>(item), thread);
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) done_.notify_all();
    ++ticket;
  }
}

}  // namespace precast
