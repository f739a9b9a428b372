// The one thread pool. Work of an op is cut into items; threads grab them one by one, so that a slow or absent thread
// costs its share only. Between jobs workers spin for a moment and then sleep: an idle pool uses no CPU. In a forked
// process, which has none of its threads, the caller does all the work.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace precast {

class ThreadPool {
 public:
  // num_threads ≥ 1, the caller of parallel_for included; 1 starts no thread.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(item, thread) for item 0 … count − 1, each once, in any order; 0 ≤ thread < num_threads(), and no two
  // calls at a time have the same one. Returns when all are done, and what they wrote is visible. One caller at a time;
  // fn must not throw, nor call parallel_for. A single item runs on the caller without waking anybody.
  template <typename Fn>
  void parallel_for(int count, const Fn& fn) {
    if (count <= 1 || workers_.empty()) {
      for (int item = 0; item < count; ++item) fn(item, 0);
      return;
    }
    run([](const void* f, int item, int thread) { (*static_cast<const Fn*>(f))(item, thread); }, &fn, count);
  }

 private:
  using Call = void (*)(const void* fn, int item, int thread);

  void stop();
  void run(Call call, const void* fn, int count);
  void work(int thread);
  void grab_items(uint32_t job, int thread);

  // What a job is. A thread that comes late may read these while they are replaced, hence atomic; it then fails to take
  // a ticket, and what it read goes unused.
  std::atomic<Call> call_{nullptr};
  std::atomic<const void*> fn_{nullptr};
  std::atomic<int> count_{0};

  // Each on a cache line of its own: they are written by different threads at different times.
  alignas(64) std::atomic<uint64_t> ticket_{0};  // job << 32 | next item
  alignas(64) std::atomic<uint32_t> done_{0};    // items finished of the current job
  alignas(64) std::atomic<uint32_t> job_{0};     // workers wait for it to change
  std::atomic<bool> stop_{false};

  alignas(64) std::vector<std::thread> workers_;
  const pid_t process_;  // which has them
};

}  // namespace precast
