#include "failing_new.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

using precast::Whose;

std::atomic<Whose> counted{Whose::none};
std::atomic<int64_t> left{0};
std::atomic<bool> once{false};
std::atomic<int64_t> failed{0};
thread_local bool is_caller = false;

bool fails() {
  const Whose whose = counted.load();
  if (whose == Whose::none || (whose == Whose::caller) != is_caller) return false;
  const int64_t before = left.fetch_sub(1);
  if (before > 0 || (once && before < 0)) return false;
  ++failed;
  return true;
}

}  // namespace

namespace precast {

void fail_at(Whose whose, int64_t number, bool alone) {
  is_caller = true;
  failed = 0;
  left = number;
  once = alone;
  counted = whose;
}

int64_t stop_failing() {
  counted = Whose::none;
  return failed;
}

}  // namespace precast

void* operator new(size_t size) {
  if (fails()) throw std::bad_alloc();
  if (void* memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
