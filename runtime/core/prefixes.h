// Prefixes whose K/V was computed at build time: the section `prefixes` of an engine (docs/engine-format.md).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/core/core.h"
#include "runtime/core/kv_cache.h"

namespace precast {

inline constexpr const char* kPrefixesTag = "prefixes.v0";

struct Prefixes {
  std::vector<std::vector<TokenId>> prompts;  // each of whole pages
  int32_t num_pages = 0;                      // of each layer group
  std::vector<std::span<const uint8_t>>
      pages;  // [group] num_pages pages, in the order in which load_prefixes takes them
};

// Checks a section's bytes, which `prefixes` goes on pointing into. Throws EngineError with one sentence.
Prefixes read_prefixes(std::span<const uint8_t> section, const ModelLimits& limits);

// Gives every prefix pages of an empty cache and their K/V, and pins them: requests without a salt find them. Throws
// EngineError when the pools do not hold them.
void load_prefixes(const Prefixes& prefixes, KvCache& cache, Backend& backend);

}  // namespace precast
