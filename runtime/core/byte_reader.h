// Reads little-endian values from bytes that may be hostile: nothing is read behind the end.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "runtime/core/core.h"

namespace precast {

static_assert(std::endian::native == std::endian::little, "engine files are mapped as they are: little-endian");

class ByteReader {
 public:
  // `what` names the bytes in errors, e.g. "the section table".
  ByteReader(std::span<const uint8_t> bytes, const char* what) : bytes_(bytes), what_(what) {}

  size_t left() const { return bytes_.size() - place_; }

  // Throws EngineError when fewer than sizeof(T) bytes are left; so do the others.
  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)), sizeof(T));
    return value;
  }

  // u16 length, then that many bytes of valid UTF-8.
  std::string text();

  // A u32 count of items of at least `bytes_each` bytes: one that cannot fit into what is left is damage, so that
  // nobody allocates by a number out of thin air.
  uint32_t count(size_t bytes_each);

  [[noreturn]] void fail(const std::string& why) const;

 private:
  const uint8_t* take(size_t size) {
    if (size > left()) fail("it ends early");
    const uint8_t* p = bytes_.data() + place_;
    place_ += size;
    return p;
  }

  std::span<const uint8_t> bytes_;
  const char* what_;
  size_t place_ = 0;
};

}  // namespace precast
