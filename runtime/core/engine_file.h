// rank{r}.engine (docs/engine-format.md): mapped read-only or copied, and checked before anything in it is believed.
// The Python twin is builder/engine_file.py.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/core/memory.h"
#include "runtime/core/plan.h"

namespace precast {

struct Section {
  std::string name;
  std::string tag;                  // layout
  uint64_t offset;                  // a multiple of 64
  uint64_t length;                  // bytes
  std::vector<uint32_t> checksums;  // CRC-32 of each block of kChecksumBlock bytes
};

inline constexpr uint64_t kChecksumBlock = uint64_t{4} << 20;

// What a whole engine file holds, without its weights: the checked section table and the plan.
struct EngineContent {
  std::vector<Section> sections;
  Plan plan;
};

enum class WeightsMemory {
  map,   // pages of the file, shared by all processes that map it
  copy,  // own memory, in huge pages where the system has them
};

// Checks header, section table and plan of a file's bytes. Throws EngineError with one sentence, without the path.
EngineContent read_engine(std::span<const uint8_t> file);

class EngineFile {
 public:
  // Maps or copies the file. Throws EngineError, which names the path; std::bad_alloc.
  static std::shared_ptr<const EngineFile> open(const std::string& path, WeightsMemory how = WeightsMemory::map);
  ~EngineFile();
  EngineFile(const EngineFile&) = delete;
  EngineFile& operator=(const EngineFile&) = delete;

  const std::string& path() const { return path_; }
  const Plan& plan() const { return content_.plan; }
  const std::vector<Section>& sections() const { return content_.sections; }
  // Null when there is none of this name.
  const Section* find(const std::string& name) const;
  std::span<const uint8_t> bytes(const Section& section) const { return file_.subspan(section.offset, section.length); }
  // Makes bytes of the file appear at `to`, in memory of this process that lies on page borders of the system and that
  // may be written: mapped where both lie so, without being read, else copied.
  void put(std::span<const uint8_t> bytes, std::byte* to) const;

 private:
  EngineFile(const std::string& path, WeightsMemory how);
  void copy(size_t size);

  std::string path_;
  int fd_ = -1;
  Memory copy_;
  std::span<const uint8_t> file_;  // the mapping, or copy_
  EngineContent content_;
  std::unordered_map<std::string, const Section*> by_name_;
};

}  // namespace precast
