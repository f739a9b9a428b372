#include "runtime/core/engine_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <unordered_set>

#include "runtime/core/byte_reader.h"
#include "runtime/core/core.h"
#include "runtime/core/crc32.h"

namespace precast {

namespace {

constexpr uint32_t kFormatVersion = 0;
constexpr size_t kHeaderBytes = 64;
constexpr uint32_t kMaxSections = 1 << 16;
constexpr uint64_t kMaxTableBytes = uint64_t{8} << 20;  // the checksums of eight terabytes of weights
constexpr uint64_t kMaxPlanBytes = uint64_t{16} << 20;  // as long as those of ten thousand layers

struct Header {
  uint32_t num_sections;
  uint64_t table_at, table_bytes;
  uint32_t table_crc;
};

Header read_header(std::span<const uint8_t> file) {
  if (file.size() < 8 || std::memcmp(file.data(), "PRECAST\0", 8) != 0) throw EngineError("this is not an engine file");
  if (file.size() < kHeaderBytes) {
    throw EngineError("the file is truncated: it has " + std::to_string(file.size()) + " bytes, fewer than a header");
  }
  ByteReader reader(file.first(kHeaderBytes), "the header");
  reader.number<uint64_t>();  // magic
  const auto version = reader.number<uint32_t>();
  if (version != kFormatVersion) {
    throw EngineError("it has engine format " + std::to_string(version) + " and this precast reads " +
                      std::to_string(kFormatVersion) + "; build it again");
  }
  Header header;
  header.num_sections = reader.number<uint32_t>();
  const auto size = reader.number<uint64_t>();
  header.table_at = reader.number<uint64_t>();
  header.table_bytes = reader.number<uint64_t>();
  header.table_crc = reader.number<uint32_t>();
  uint32_t header_crc;
  std::memcpy(&header_crc, file.data() + 60, 4);
  if (crc32(file.data(), 60) != header_crc) throw EngineError("the header is damaged: its checksum does not match");
  if (size != file.size()) {
    throw EngineError("the file is truncated or has grown: its header says " + std::to_string(size) +
                      " bytes, the file has " + std::to_string(file.size()));
  }
  if (header.table_at < kHeaderBytes || header.table_at > size || header.table_bytes != size - header.table_at ||
      header.table_bytes > kMaxTableBytes || header.num_sections < 1 || header.num_sections > kMaxSections) {
    throw EngineError("the header is damaged: the section table is not the end of the file");
  }
  return header;
}

// Sections stand in rising order, without overlap, from `begin` to `end`, where the table begins.
Section read_section(ByteReader& reader, uint64_t begin, uint64_t end) {
  Section section;
  section.name = reader.text();
  section.tag = reader.text();
  section.offset = reader.number<uint64_t>();
  section.length = reader.number<uint64_t>();
  const auto block = reader.number<uint32_t>();
  if (block != kChecksumBlock || section.offset % 64 != 0 || section.offset < begin || section.length > end ||
      section.offset > end - section.length) {
    reader.fail("section " + section.name + " lies outside the file, or over another");
  }
  const uint64_t blocks = (section.length + kChecksumBlock - 1) / kChecksumBlock;
  if (blocks > reader.left() / 4) reader.fail("it ends early");
  section.checksums.resize(blocks);
  for (uint32_t& checksum : section.checksums) checksum = reader.number<uint32_t>();
  return section;
}

std::vector<Section> read_sections(std::span<const uint8_t> file, const Header& header) {
  const std::span<const uint8_t> table = file.subspan(header.table_at, header.table_bytes);
  if (crc32(table.data(), table.size()) != header.table_crc) {
    throw EngineError("the section table is damaged: its checksum does not match");
  }
  ByteReader reader(table, "the section table");
  std::vector<Section> sections;
  std::unordered_set<std::string> names;
  uint64_t begin = kHeaderBytes;
  for (uint32_t i = 0; i < header.num_sections; ++i) {
    sections.push_back(read_section(reader, begin, header.table_at));
    const Section& section = sections.back();
    if (!names.insert(section.name).second) reader.fail("section " + section.name + " stands twice");
    begin = section.offset + section.length;
  }
  if (reader.left() != 0) reader.fail("bytes are left over");
  return sections;
}

void check_blocks(const Section& section, std::span<const uint8_t> bytes) {
  for (size_t i = 0; i < section.checksums.size(); ++i) {
    const size_t begin = i * kChecksumBlock, length = std::min<size_t>(bytes.size() - begin, kChecksumBlock);
    if (crc32(bytes.data() + begin, length) != section.checksums[i]) {
      throw EngineError("section " + section.name + " is damaged: the checksum at byte " +
                        std::to_string(section.offset + begin) + " does not match");
    }
  }
}

}  // namespace

EngineContent read_engine(std::span<const uint8_t> file) {
  EngineContent content;
  content.sections = read_sections(file, read_header(file));
  const auto plan = std::find_if(content.sections.begin(), content.sections.end(),
                                 [](const Section& section) { return section.name == "plan"; });
  if (plan == content.sections.end()) throw EngineError("it has no plan; build it again");
  if (plan->tag != "plan.v0") throw EngineError("its plan has the unknown layout " + plan->tag + "; build it again");
  if (plan->length > kMaxPlanBytes) {
    throw EngineError("its plan takes " + std::to_string(plan->length) + " bytes, and at most " +
                      std::to_string(kMaxPlanBytes) + " are read");
  }
  const std::span<const uint8_t> bytes = file.subspan(plan->offset, plan->length);
  check_blocks(*plan, bytes);
  content.plan = read_plan(bytes);
  return content;
}

EngineFile::EngineFile(const std::string& path, WeightsMemory how) : path_(path) {
  const auto fail = [&](const char* what, int error) {
    if (fd_ >= 0) ::close(fd_);
    throw EngineError(path + " " + what + ": " + std::strerror(error));
  };
  // O_NONBLOCK: a FIFO must not make us wait for its writer.
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) fail("cannot be opened", errno);
  struct stat info {};
  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd_);
    throw EngineError(path + " is not a regular file");
  }
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) return;
  if (how == WeightsMemory::copy) {
    try {
      copy(size);
    } catch (...) {
      ::close(fd_);
      throw;
    }
    return;
  }
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd_, 0);
  if (data == MAP_FAILED) fail("cannot be mapped", errno);
  // Linux then reads a file that is not in its cache in huge pages, where the file system has them, and maps these
  // whole: far fewer page faults, and fewer page walks in every step. What is in the cache already stays as it is.
  ::madvise(data, size, MADV_HUGEPAGE);
  file_ = {static_cast<const uint8_t*>(data), size};
}

void EngineFile::copy(size_t size) {
  copy_ = Memory(size);
  for (size_t at = 0; at < size;) {
    const ssize_t got = ::pread(fd_, copy_.data() + at, size - at, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      throw EngineError(path_ + " cannot be read: " + (got < 0 ? std::strerror(errno) : "it became shorter meanwhile"));
    }
    at += static_cast<size_t>(got);
  }
  file_ = {reinterpret_cast<const uint8_t*>(copy_.data()), size};
}

std::shared_ptr<const EngineFile> EngineFile::open(const std::string& path, WeightsMemory how) {
  const std::shared_ptr<EngineFile> file(new EngineFile(path, how));
  try {
    file->content_ = read_engine(file->file_);
    for (const Section& section : file->content_.sections) file->by_name_.emplace(section.name, &section);
  } catch (const EngineError& error) {
    throw EngineError(path + " will not load: " + error.what());
  }
  return file;
}

EngineFile::~EngineFile() {
  if (!file_.empty() && copy_.data() == nullptr) ::munmap(const_cast<uint8_t*>(file_.data()), file_.size());
  ::close(fd_);
}

void EngineFile::put(std::span<const uint8_t> bytes, std::byte* to) const {
  constexpr size_t kSystemPage = 4096;
  const auto offset = static_cast<size_t>(bytes.data() - file_.data());
  size_t mapped = 0;
  if (offset % kSystemPage == 0 && reinterpret_cast<uintptr_t>(to) % kSystemPage == 0) {
    mapped = bytes.size() / kSystemPage * kSystemPage;
    const int protection = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_FIXED;
    if (mapped > 0 && ::mmap(to, mapped, protection, flags, fd_, static_cast<off_t>(offset)) == MAP_FAILED) {
      throw std::bad_alloc();
    }
  }
  std::memcpy(to + mapped, bytes.data() + mapped, bytes.size() - mapped);
}

const Section* EngineFile::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

}  // namespace precast
