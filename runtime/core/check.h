// Invariants, written where they hold. PRECAST_CHECK runs in builds with PRECAST_DEBUG_CHECKS only; what it finds is a
// fault of precast, never of a user, and throws: the loop fails its requests with the sentence.
#pragma once
#include <stdexcept>
#include <string>

#include "runtime/core/core.h"

namespace precast {

struct InvariantError : std::logic_error {
  using std::logic_error::logic_error;
};

#if defined(PRECAST_DEBUG_CHECKS)
inline constexpr bool kDebugChecks = true;
#else
inline constexpr bool kDebugChecks = false;
#endif

inline void require(bool holds, const char* what) {
  if (!holds) throw InvariantError(std::string("broken invariant: ") + what);
}

#define PRECAST_CHECK(condition)                                                                         \
  do {                                                                                                   \
    if constexpr (::precast::kDebugChecks) ::precast::require(static_cast<bool>(condition), #condition); \
  } while (false)

// Throws InvariantError when a sequence breaks the invariants of its state.
void check_sequence(const Sequence& sequence, int32_t page_tokens);

}  // namespace precast
