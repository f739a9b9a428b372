#include "runtime/core/byte_reader.h"

namespace precast {

namespace {

// Names go into error messages and from there into Python strings, so they must be UTF-8 (RFC 3629).
bool is_utf8(std::span<const uint8_t> s) {
  for (size_t i = 0; i < s.size();) {
    const uint8_t lead = s[i];
    const size_t length = lead < 0x80 ? 1 : lead >= 0xC2 && lead < 0xE0 ? 2 : (lead & 0xF0) == 0xE0 ? 3 : 4;
    if (length == 4 && (lead < 0xF0 || lead > 0xF4)) return false;
    if (length > s.size() - i) return false;
    for (size_t j = 1; j < length; ++j) {
      if ((s[i + j] & 0xC0) != 0x80) return false;
    }
    const uint8_t second = length > 1 ? s[i + 1] : 0;
    if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F)) return false;  // overlong, surrogate
    if ((lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) return false;  // overlong, too large
    i += length;
  }
  return true;
}

}  // namespace

std::string ByteReader::text() {
  const size_t length = number<uint16_t>();
  const uint8_t* p = take(length);
  if (!is_utf8({p, length})) fail("a name is not UTF-8");
  return {reinterpret_cast<const char*>(p), length};
}

uint32_t ByteReader::count(size_t bytes_each) {
  const auto n = number<uint32_t>();
  if (n > left() / bytes_each) fail("a count of " + std::to_string(n) + " runs over its end");
  return n;
}

void ByteReader::fail(const std::string& why) const {
  throw EngineError(std::string(what_) + " is damaged: " + why + " (byte " + std::to_string(place_) + ")");
}

}  // namespace precast
