// The engine's `vocab_bytes` section (docs/engine-format.md): the bytes of every token, read where they lie.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "runtime/core/core.h"

namespace precast {

class VocabBytes {
 public:
  // Reads `section`, which `owner` keeps alive. Every count and offset is checked. Throws EngineError.
  VocabBytes(std::span<const uint8_t> section, std::shared_ptr<const void> owner);

  int32_t size() const { return size_; }
  // A token's bytes; none for an id that the table does not have (a vocabulary padded by the model).
  std::string_view bytes(TokenId id) const;
  bool is_special(TokenId id) const;
  bool drops_leading_space() const { return drops_leading_space_; }

 private:
  uint32_t offset(int32_t i) const;

  std::shared_ptr<const void> owner_;
  int32_t size_ = 0;
  bool drops_leading_space_ = false;
  const uint8_t* offsets_ = nullptr;
  const uint8_t* bytes_ = nullptr;
  const uint8_t* flags_ = nullptr;
};

}  // namespace precast
