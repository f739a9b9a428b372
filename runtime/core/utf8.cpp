#include "runtime/core/utf8.h"

#include <cstdint>

namespace precast {
namespace {

struct Lead {
  int length;                 // bytes of the character; 0: no character begins like this
  uint8_t second_low = 0x80;  // allowed second bytes: what excludes overlong forms, surrogates and beyond U+10FFFF
  uint8_t second_high = 0xBF;
};

Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

// How many bytes at the front belong together: a whole character, or the part of one that is well-formed so far.
size_t well_formed_part(std::string_view bytes, const Lead& lead) {
  size_t n = 1;
  while (n < bytes.size() && n < static_cast<size_t>(lead.length)) {
    const auto byte = static_cast<uint8_t>(bytes[n]);
    const bool fits = n == 1 ? byte >= lead.second_low && byte <= lead.second_high : (byte & 0xC0) == 0x80;
    if (!fits) break;
    ++n;
  }
  return n;
}

}  // namespace

size_t decode_utf8(std::string_view bytes, bool final, std::string& text) {
  size_t used = 0;
  while (used < bytes.size()) {
    const std::string_view rest = bytes.substr(used);
    const Lead lead = lead_of(static_cast<uint8_t>(rest[0]));
    const size_t part = lead.length == 0 ? 1 : well_formed_part(rest, lead);
    if (part == static_cast<size_t>(lead.length)) {
      text.append(rest.substr(0, part));
    } else {
      const bool may_continue = lead.length != 0 && part == rest.size();
      if (may_continue && !final) break;
      text.append("\xEF\xBF\xBD");
    }
    used += part;
  }
  return used;
}

bool is_utf8(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const Lead lead = lead_of(static_cast<uint8_t>(bytes[i]));
    const size_t part = lead.length == 0 ? 0 : well_formed_part(bytes.substr(i), lead);
    if (lead.length == 0 || part != static_cast<size_t>(lead.length)) return false;
    i += part;
  }
  return true;
}

}  // namespace precast
