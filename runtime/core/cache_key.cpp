#include "runtime/core/cache_key.h"

namespace precast {

std::string shared_cache_key(const std::optional<std::string>& salt, const std::string& adapter) {
  std::string key;
  const auto part = [&key](const char* kind, const std::string& value) {
    key += kind + std::to_string(value.size()) + ":" + value;
  };
  if (salt) part("salt", *salt);
  if (!adapter.empty()) part("adapter", adapter);
  return key;
}

std::string private_cache_key(RequestId id) { return "request" + std::to_string(id); }

}  // namespace precast
