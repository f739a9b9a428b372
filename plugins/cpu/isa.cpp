#include "plugins/cpu/isa.h"

#include <cpuid.h>

#include <cstdlib>

#include "plugins/cpu/kernels.h"

namespace precast {

namespace avx2 {
extern const KernelTable kTable;
}
namespace avx2_vnni {
extern const KernelTable kTable;
}
namespace avx512 {
extern const KernelTable kTable;
}

namespace {

// CPUID, leaf 7.1, EAX, bit 4. Not every compiler knows the name that __builtin_cpu_supports would want.
bool has_avx_vnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 4 & 1) != 0;
}

}  // namespace

bool isa_is_emulated() {
#if defined(PRECAST_EMULATE_ISA)
  return true;
#else
  return false;
#endif
}

bool isa_supported(const std::string& level) {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  if (level == "avx2") return avx2;
  if (level == "avx2_vnni") return avx2 && (isa_is_emulated() || has_avx_vnni());
  if (level == "avx512") {
    return avx2 &&
           (isa_is_emulated() || (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                                  __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16")));
  }
  return false;
}

std::string isa_level() {
  if (const char* forced = std::getenv("PRECAST_ISA"); forced != nullptr && *forced != '\0') {
    kernel_table(forced);  // throws when it cannot run here
    return forced;
  }
  for (const char* level : {"avx512", "avx2_vnni", "avx2"}) {
    if (isa_supported(level)) return level;
  }
  throw IsaError("this CPU lacks AVX2 and FMA, which precast's CPU target needs");
}

const KernelTable& kernel_table(const std::string& level) {
  for (const KernelTable* table : {&avx2::kTable, &avx2_vnni::kTable, &avx512::kTable}) {
    if (level != table->isa) continue;
    if (!isa_supported(level)) throw IsaError("this CPU cannot run the ISA level " + level);
    return *table;
  }
  throw IsaError("unknown ISA level \"" + level + "\"; the levels are avx2, avx2_vnni and avx512");
}

}  // namespace precast
