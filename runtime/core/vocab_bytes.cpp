#include "runtime/core/vocab_bytes.h"

#include <cstring>
#include <limits>
#include <utility>

namespace precast {
namespace {

constexpr uint8_t kSpecial = 1;
constexpr uint32_t kDropLeadingSpace = 1;

uint32_t read_u32(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

[[noreturn]] void refuse(const char* what) {
  throw EngineError(std::string("the engine's vocab_bytes section ") + what + "; build the engine again");
}

}  // namespace

VocabBytes::VocabBytes(std::span<const uint8_t> section, std::shared_ptr<const void> owner) : owner_(std::move(owner)) {
  if (section.size() < 12) refuse("is too short");
  const uint64_t tokens = read_u32(section.data());
  const uint32_t options = read_u32(section.data() + 4);
  if (tokens > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) refuse("has too many tokens");
  if ((options & ~kDropLeadingSpace) != 0) refuse("has options that this version does not know");
  const uint64_t head = 8 + 4 * (tokens + 1);
  if (head > section.size()) refuse("is shorter than its table");
  size_ = static_cast<int32_t>(tokens);
  drops_leading_space_ = (options & kDropLeadingSpace) != 0;
  offsets_ = section.data() + 8;
  bytes_ = section.data() + head;
  if (offset(0) != 0) refuse("has a first offset that is not 0");
  for (int32_t i = 0; i < size_; ++i) {
    if (offset(i) > offset(i + 1)) refuse("has offsets that fall");
  }
  if (head + offset(size_) + tokens != section.size()) refuse("has another length than its table says");
  flags_ = bytes_ + offset(size_);
}

uint32_t VocabBytes::offset(int32_t i) const { return read_u32(offsets_ + 4 * static_cast<size_t>(i)); }

std::string_view VocabBytes::bytes(TokenId id) const {
  if (id < 0 || id >= size_) return {};
  const uint32_t begin = offset(id);
  return {reinterpret_cast<const char*>(bytes_) + begin, offset(id + 1) - begin};
}

bool VocabBytes::is_special(TokenId id) const { return id >= 0 && id < size_ && (flags_[id] & kSpecial) != 0; }

}  // namespace precast
