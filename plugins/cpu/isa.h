// The ISA levels that kernels are compiled for, and the one place that picks one.
#pragma once
#include <stdexcept>
#include <string>

namespace precast {

// Raised for a level that is unknown or that this CPU lacks; the message is one sentence for the user.
struct IsaError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct KernelTable;

// The best level of this CPU, or the one that the environment variable PRECAST_ISA names.
// Levels, from low to high: "avx2" (AVX2, FMA, BMI2), "avx2_vnni" (avx2 and AVX-VNNI), "avx512" (avx2 and AVX-512
// F/BW/DQ/VL/VNNI/BF16).
std::string isa_level();

// True when this CPU and its operating system can run `level`.
bool isa_supported(const std::string& level);

// True in a build for tests whose levels above avx2 run on AVX2 instructions (CMake's PRECAST_EMULATE_ISA).
bool isa_is_emulated();

// The kernels of one level. Throws IsaError when the CPU cannot run it.
const KernelTable& kernel_table(const std::string& level);

}  // namespace precast
