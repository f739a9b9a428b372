// Who may share cached K/V with whom.
#pragma once
#include <optional>
#include <string>

#include "runtime/core/core.h"

namespace precast {

// A key of everything but the tokens that a page's K/V depends on, or that must keep it apart: every part is tagged by
// its kind and carries its length, so that no salt can equal an adapter's name, whatever both contain. `adapter`: empty
// for none.
inline std::string shared_cache_key(const std::optional<std::string>& salt, const std::string& adapter = {}) {
  std::string key;
  const auto part = [&key](const char* kind, const std::string& value) {
    key += kind + std::to_string(value.size()) + ":" + value;
  };
  if (salt) part("salt", *salt);
  if (!adapter.empty()) part("adapter", adapter);
  return key;
}

// A key of one request alone: its sequences share their prompt, and nobody else finds it.
inline std::string private_cache_key(RequestId id) { return "request" + std::to_string(id); }

}  // namespace precast
