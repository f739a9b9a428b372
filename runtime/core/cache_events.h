// What the prefix cache has gained and lost, for who routes requests to the engine that holds their prefix.
#pragma once
#include <string>
#include <vector>

#include "runtime/core/core.h"
#include "runtime/core/event_ring.h"

namespace precast {

struct CacheEvent {
  enum class Kind : uint8_t { stored, removed };
  Kind kind;
  uint64_t node;                // never used again for another
  uint64_t parent = 0;          // stored: the node of the page before; 0: none, it is the first
  std::string key;              // stored: see cache_key.h
  std::vector<TokenId> tokens;  // stored: of this page alone
};

using CacheEvents = EventRing<CacheEvent>;

}  // namespace precast
