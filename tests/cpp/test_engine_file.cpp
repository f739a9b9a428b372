// read_engine and read_plan on damaged bytes: under the sanitizers, every flipped byte and every cut is an error or a
// file that still holds together.
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "runtime/core/core.h"
#include "runtime/core/crc32.h"
#include "runtime/core/engine_file.h"
#include "runtime/core/plan.h"
#include "tests/cpp/engine_bytes.h"

namespace precast {
namespace {

std::vector<uint8_t> small_plan() {
  ByteWriter w;
  w.number<uint32_t>(3);
  w.text("isa").number<uint8_t>(2).text("avx2");
  w.text("hidden_size").number<uint8_t>(0).number<int64_t>(64);
  w.text("theta").number<uint8_t>(1).number<double>(1e4);
  w.number<uint32_t>(2);
  w.text("x").number<uint8_t>(0).number<uint8_t>(0).number<uint32_t>(64).number<int32_t>(0).number<uint32_t>(0);
  w.text("q").number<uint8_t>(1).number<uint8_t>(1).number<uint32_t>(64).number<int32_t>(32).number<uint32_t>(1);
  w.number<uint32_t>(1);
  w.text("quantize");
  w.number<uint32_t>(1).number<uint32_t>(0).number<uint32_t>(1).number<uint32_t>(1);
  w.number<uint32_t>(1).text("gain");
  w.number<uint32_t>(1).text("epsilon").number<uint8_t>(1).number<double>(1e-5);
  return w.bytes;
}

// A file with the sections "plan" and "gain".
std::vector<uint8_t> small_engine() {
  return engine_bytes({{"plan", "plan.v0", small_plan()}, {"gain", "vector.f32", std::vector<uint8_t>(256, 7)}});
}

uint64_t table_at(const std::vector<uint8_t>& file) {
  uint64_t at;
  std::memcpy(&at, &file[24], 8);
  return at;
}

// Makes header and table checksums true again, so that damage behind them is reached.
void reseal(std::vector<uint8_t>& file) {
  if (const uint64_t at = table_at(file); at < file.size()) {
    const uint32_t crc = crc32(&file[at], file.size() - at);
    std::memcpy(&file[40], &crc, 4);
  }
  const uint32_t crc = crc32(file.data(), 60);
  std::memcpy(&file[60], &crc, 4);
}

std::string error_of(const std::vector<uint8_t>& file) {
  try {
    const EngineContent content = read_engine(file);
    for (const Section& section : content.sections) {
      if (section.offset + section.length > file.size()) return "a section outside the file";
    }
    return "";
  } catch (const EngineError& error) {
    return error.what();
  }
}

bool says(const std::vector<uint8_t>& file, const char* what) { return error_of(file).find(what) != std::string::npos; }

TEST_CASE("CRC-32 is zlib's") {
  CHECK(crc32("123456789", 9) == 0xCBF43926u);
  CHECK(crc32("", 0) == 0);
  std::vector<uint8_t> bytes(1000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * i);
  const uint32_t whole = crc32(bytes.data(), bytes.size());
  for (size_t cut = 0; cut < 40; ++cut) {
    CHECK(crc32(bytes.data() + cut, bytes.size() - cut, crc32(bytes.data(), cut)) == whole);
  }
}

TEST_CASE("a plan is read as written") {
  const Plan plan = read_plan(small_plan());
  CHECK(plan.attributes.text("isa") == "avx2");
  CHECK(plan.attributes.integer("hidden_size", 1, 64) == 64);
  CHECK(plan.attributes.real("theta") == 1e4);
  CHECK(plan.attributes.real("hidden_size") == 64.0);
  REQUIRE(plan.buffers.size() == 2);
  CHECK(plan.buffers[1].quantized);
  CHECK(plan.buffers[1].sampled_rows);
  CHECK(plan.buffers[1].group == 32);
  REQUIRE(plan.ops.size() == 1);
  CHECK(plan.ops[0].weights == std::vector<std::string>{"gain"});
  CHECK_THROWS_AS(plan.attributes.integer("hidden_size", 65, 99), EngineError);
  CHECK_THROWS_AS(plan.attributes.integer("isa", 0, 9), EngineError);
  CHECK_THROWS_AS(plan.attributes.text("none"), EngineError);
}

TEST_CASE("a cut or changed plan is an error or another plan") {
  const std::vector<uint8_t> whole = small_plan();
  for (size_t size = 0; size < whole.size(); ++size) {
    CHECK_THROWS_AS(read_plan({whole.data(), size}), EngineError);
  }
  std::mt19937 random(1);
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const uint8_t value : {uint8_t{0}, uint8_t{1}, uint8_t{127}, uint8_t{255}, static_cast<uint8_t>(random())}) {
      std::vector<uint8_t> changed = whole;
      changed[at] = value;
      try {
        const Plan plan = read_plan(changed);
        for (const PlanOp& op : plan.ops) {
          for (const int32_t i : op.inputs) CHECK(static_cast<size_t>(i) < plan.buffers.size());
        }
      } catch (const EngineError&) {
      }
    }
  }
}

TEST_CASE("damage is named") {
  const std::vector<uint8_t> good = small_engine();
  CHECK(error_of(good).empty());

  std::vector<uint8_t> file = good;
  file[0] = 'p';
  CHECK(says(file, "not an engine file"));
  CHECK(says({}, "not an engine file"));

  file = good;
  file[8] = 9;
  CHECK(says(file, "engine format 9"));

  file.assign(good.begin(), good.begin() + 40);
  CHECK(says(file, "truncated: it has 40 bytes"));

  file.assign(good.begin(), good.end() - 5);
  CHECK(says(file, (std::to_string(good.size()) + " bytes, the file has " + std::to_string(good.size() - 5)).c_str()));

  file = good;
  file[20] ^= 1;  // the size, in the header
  CHECK(says(file, "the header is damaged"));

  file = good;
  file[table_at(good) + 6] ^= 1;
  CHECK(says(file, "the section table is damaged"));

  file = good;
  file[72] ^= 1;
  CHECK(says(file, "section plan is damaged"));
}

TEST_CASE("a crafted file is an error or holds together") {
  const std::vector<uint8_t> good = small_engine();
  std::mt19937 random(2);
  for (size_t at = 8; at < good.size(); ++at) {
    if (at == 192) at = table_at(good);
    for (const uint8_t value : {uint8_t{0}, uint8_t{1}, uint8_t{64}, uint8_t{128}, uint8_t{255}, uint8_t(random())}) {
      std::vector<uint8_t> file = good;
      file[at] = value;
      reseal(file);
      CHECK(error_of(file) != "a section outside the file");
    }
  }
  for (int i = 0; i < 20000; ++i) {
    std::vector<uint8_t> file = good;
    for (int n = 1 + static_cast<int>(random() % 4); n > 0; --n) {
      file[8 + random() % (file.size() - 8)] = static_cast<uint8_t>(random());
    }
    if (random() % 4 == 0) file.resize(64 + random() % (file.size() - 64));
    reseal(file);
    CHECK(error_of(file) != "a section outside the file");
  }
}

}  // namespace
}  // namespace precast
