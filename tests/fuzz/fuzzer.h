// What libFuzzer calls, and what it offers (https://llvm.org/docs/LibFuzzer.html).
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// Changes data in place; returns the new size, at most max_size.
size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed);
size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);
}

namespace precast {

// What must hold for every input; libFuzzer keeps the input that breaks it.
inline void expect(bool holds) {
  if (!holds) __builtin_trap();
}

}  // namespace precast
