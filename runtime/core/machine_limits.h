// What this machine can do at most, measured: the yardstick of every speed.
#pragma once
#include "plugins/cpu/kernels.h"
#include "runtime/core/thread_pool.h"

namespace precast {

// Per second, of all threads together. An operation is a multiplication or an addition: two a product.
struct MachineLimits {
  double read_bytes = 0;  // from memory, far more than caches hold
  double i8_ops = 0;      // products of bytes with sums of 32 bits, as the int8 linears of the ISA level make them
  double bf16_ops = 0;
  double f32_ops = 0;
};

// Takes the best of several short rounds of each (about half a second in all): other work on the machine can only
// lower them. Throws std::bad_alloc.
MachineLimits measure_machine_limits(const KernelTable& kernels, ThreadPool& pool);

}  // namespace precast
