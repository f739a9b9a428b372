// An engine file taken apart and put together again, with checksums that fit: what a fuzzer changes between lies behind
// them.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/core/plan.h"
#include "tests/cpp/engine_bytes.h"

namespace precast {

struct EngineImage {
  Plan plan;
  std::vector<SectionBytes> sections;  // without the plan's
};

// Nothing for bytes that are no engine file, or one with sections of more than a checksum block.
std::optional<EngineImage> take_apart(std::span<const uint8_t> file);

// Sections have a gap behind them, so that reading on from one is seen.
std::vector<uint8_t> put_together(const EngineImage& image);

}  // namespace precast
