// Writes engine files for the C++ tests.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/crc32.h"

namespace precast {

struct ByteWriter {
  std::vector<uint8_t> bytes;

  template <typename T>
  ByteWriter& number(T value) {
    const auto* p = reinterpret_cast<const uint8_t*>(&value);
    bytes.insert(bytes.end(), p, p + sizeof(T));
    return *this;
  }
  ByteWriter& text(const std::string& s) {
    number<uint16_t>(static_cast<uint16_t>(s.size()));
    bytes.insert(bytes.end(), s.begin(), s.end());
    return *this;
  }
};

struct SectionBytes {
  std::string name, tag;
  std::vector<uint8_t> bytes;  // at most one checksum block: 4 MiB
};

// A whole engine file (docs/engine-format.md), with at least `gap` bytes behind each section.
inline std::vector<uint8_t> engine_bytes(const std::vector<SectionBytes>& sections, size_t gap = 0) {
  const auto aligned = [](size_t x) { return (x + 63) / 64 * 64; };
  ByteWriter table;
  size_t at = 64;
  for (const SectionBytes& s : sections) {
    at = aligned(at);
    table.text(s.name).text(s.tag).number<uint64_t>(at).number<uint64_t>(s.bytes.size()).number<uint32_t>(4 << 20);
    if (!s.bytes.empty()) table.number<uint32_t>(crc32(s.bytes.data(), s.bytes.size()));
    at += s.bytes.size() + gap;
  }
  ByteWriter file;
  file.bytes = {'P', 'R', 'E', 'C', 'A', 'S', 'T', 0};
  file.number<uint32_t>(0).number<uint32_t>(static_cast<uint32_t>(sections.size()));
  file.number<uint64_t>(at + table.bytes.size()).number<uint64_t>(at).number<uint64_t>(table.bytes.size());
  file.number<uint32_t>(crc32(table.bytes.data(), table.bytes.size()));
  file.bytes.resize(60);
  file.number<uint32_t>(crc32(file.bytes.data(), 60));
  file.bytes.resize(64);
  for (const SectionBytes& s : sections) {
    file.bytes.resize(aligned(file.bytes.size()));
    file.bytes.insert(file.bytes.end(), s.bytes.begin(), s.bytes.end());
    file.bytes.resize(file.bytes.size() + gap);
  }
  file.bytes.insert(file.bytes.end(), table.bytes.begin(), table.bytes.end());
  return file.bytes;
}

}  // namespace precast
