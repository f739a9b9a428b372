#include "runtime/core/short_slices.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace precast {
namespace {

// struct sched_attr of sched_setattr(2), its first version: the system's headers clash with the C library's.
struct SchedulingAttributes {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime, deadline, period;  // nanoseconds; of usual policies `runtime` is the length of a turn
};

constexpr uint64_t kShortest = 100'000;  // that the system grants

}  // namespace

void take_short_slices() noexcept {
  SchedulingAttributes attributes{};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return;
  if (attributes.policy != SCHED_OTHER && attributes.policy != SCHED_BATCH) return;
  attributes.runtime = kShortest;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace precast
