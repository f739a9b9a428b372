// Who may share cached K/V with whom.
#pragma once
#include <optional>
#include <string>

#include "runtime/core/core.h"

namespace precast {

// A key of everything but the tokens that a page's K/V depends on, or that must keep it apart: every part is tagged by
// its kind and carries its length, so that no salt can equal an adapter's name, whatever both contain. `adapter`: empty
// for none.
std::string shared_cache_key(const std::optional<std::string>& salt, const std::string& adapter = {});

// A key of one request alone: its sequences share their prompt, and nobody else finds it.
std::string private_cache_key(RequestId id);

}  // namespace precast
