// Header, section table and plan of an engine file, byte by byte. Checksums are made to fit after each change: they are
// no secret, and without them the fuzzer would never get behind the header.
#include <algorithm>
#include <cstring>
#include <string>

#include "runtime/core/byte_reader.h"
#include "runtime/core/crc32.h"
#include "runtime/core/engine_file.h"
#include "tests/fuzz/fuzzer.h"

namespace precast {
namespace {

constexpr size_t kHeaderBytes = 64, kSizeAt = 16, kTableAt = 24, kTableBytesAt = 32, kTableCrcAt = 40,
                 kHeaderCrcAt = 60;

template <typename T>
void put(uint8_t* data, T value) {
  std::memcpy(data, &value, sizeof(value));
}

// The checksum of the section called "plan", where the table can be read that far.
void fix_plan(uint8_t* data, size_t size, std::span<uint8_t> table) try {
  ByteReader reader(table, "the table");
  while (reader.left() > 0) {
    const std::string name = reader.text();
    reader.text();
    const auto offset = reader.number<uint64_t>(), length = reader.number<uint64_t>();
    reader.number<uint32_t>();
    const uint64_t blocks = length / kChecksumBlock + (length % kChecksumBlock != 0);
    for (uint64_t i = 0; i < blocks; ++i) {
      uint8_t* checksum = table.data() + (table.size() - reader.left());
      reader.number<uint32_t>();
      const bool inside = blocks == 1 && offset <= size && length <= size - offset;
      if (name == "plan" && inside) put(checksum, crc32(data + offset, length));
    }
  }
} catch (const EngineError&) {
}

// The table is the end of the file: where it begins, or else how long it is, stays as it was.
void fix_checksums(uint8_t* data, size_t size, bool keep_length) {
  if (size < kHeaderBytes) return;
  put<uint64_t>(data + kSizeAt, size);
  uint64_t at, length;
  std::memcpy(&at, data + kTableAt, 8);
  std::memcpy(&length, data + kTableBytesAt, 8);
  if (keep_length && length <= size - kHeaderBytes) at = size - length;
  at = std::clamp<uint64_t>(at, kHeaderBytes, size);
  put<uint64_t>(data + kTableAt, at);
  put<uint64_t>(data + kTableBytesAt, size - at);
  const auto table = std::span(data, size).subspan(at);
  fix_plan(data, size, table);
  put(data + kTableCrcAt, crc32(table.data(), table.size()));
  put(data + kHeaderCrcAt, crc32(data, kHeaderCrcAt));
}

void check(const EngineContent& content, size_t size) {
  uint64_t end = kHeaderBytes;
  for (const Section& section : content.sections) {
    expect(section.offset >= end && section.length <= size && section.offset <= size - section.length);
    end = section.offset + section.length;
  }
  const size_t buffers = content.plan.buffers.size();
  const auto known = [buffers](int32_t i) { return i >= 0 && static_cast<size_t>(i) < buffers; };
  for (const PlanBuffer& buffer : content.plan.buffers) expect(known(buffer.slot) && buffer.columns >= 1);
  for (const PlanOp& op : content.plan.ops) {
    expect(std::ranges::all_of(op.inputs, known) && std::ranges::all_of(op.outputs, known));
  }
}

}  // namespace
}  // namespace precast

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace precast;
  try {
    check(read_engine({data, size}), size);
  } catch (const EngineError&) {
  }
  return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  const size_t changed = LLVMFuzzerMutate(data, size, max_size);
  if (seed % 16 != 0) precast::fix_checksums(data, changed, seed % 2 == 0);
  return changed;
}
