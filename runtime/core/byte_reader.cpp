#include "runtime/core/byte_reader.h"

#include "runtime/core/utf8.h"

namespace precast {

std::string ByteReader::text() {
  const size_t length = number<uint16_t>();
  std::string text(reinterpret_cast<const char*>(take(length)), length);
  // Names go into error messages, and from there into Python strings.
  if (!is_utf8(text)) fail("a name is not UTF-8");
  return text;
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
