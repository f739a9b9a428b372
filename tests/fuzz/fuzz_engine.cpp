// Engines whose form is right and whose content is anything: refused, or run inside their own memory. Every section of
// the mapped file, and every buffer of the backend (runtime/core/red_zone.h), is fenced in for AddressSanitizer.
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "runtime/core/cpu_backend.h"
#include "runtime/core/crc32.h"
#include "tests/fuzz/engine_image.h"
#include "tests/fuzz/engine_mutator.h"
#include "tests/fuzz/fuzzer.h"

namespace precast {
namespace {

constexpr int32_t kPages = 4;
// Beyond these an engine is as safe, but slow.
constexpr int64_t kMaxPageBytes = 1 << 22, kMaxLogits = 1 << 20;

class MemoryFile {
 public:
  MemoryFile(const uint8_t* data, size_t size) : fd_(::memfd_create("engine", MFD_CLOEXEC)) {
    expect(fd_ >= 0 && ::write(fd_, data, size) == static_cast<ssize_t>(size));
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

// Makes what lies between the sections of a mapped file forbidden to read. A file outlives its fence.
class SectionFence {
 public:
  SectionFence(const EngineFile& file, size_t size) {
    const Section& first = file.sections().front();
    begin_ = file.bytes(first).data() - first.offset;
    const auto page = static_cast<size_t>(::getpagesize());
    mapped_ = (size + page - 1) / page * page;
    __asan_poison_memory_region(begin_, mapped_);
    for (const Section& s : file.sections()) __asan_unpoison_memory_region(begin_ + s.offset, s.length);
  }
  ~SectionFence() { __asan_unpoison_memory_region(begin_, mapped_); }
  SectionFence(const SectionFence&) = delete;
  SectionFence& operator=(const SectionFence&) = delete;

 private:
  const uint8_t* begin_;
  size_t mapped_;
};

// Adds rows of one sequence whose pages are those of the pool, again and again.
void add_sequence(StepBatch& batch, int32_t rows, int32_t first_position) {
  const auto at = static_cast<int32_t>(batch.block_tables.front().size());
  batch.sequences.push_back({static_cast<int32_t>(batch.tokens.size()), rows, first_position, at});
  for (std::vector<PageId>& table : batch.block_tables) {
    for (int32_t page = 0; page * 32 < first_position + rows; ++page) table.push_back((at + page) % kPages);
  }
  for (int32_t i = 0; i < rows; ++i) batch.tokens.push_back(0);
  batch.logit_rows.push_back(static_cast<int32_t>(batch.tokens.size()) - 1);
}

void run(Backend& backend, uint32_t choice) {
  const ModelLimits& limits = backend.limits();
  int64_t page_bytes = 0;
  for (const KvGroup& group : limits.groups) page_bytes += group.page_bytes;
  if (page_bytes > kMaxPageBytes || limits.vocab_size > kMaxLogits) return;
  backend.allocate_pages(std::vector<int32_t>(limits.groups.size(), kPages));
  constexpr int32_t kRows[] = {1, 7, 33, 70}, kPositions[] = {0, 5, 250, 290};
  const int32_t most = std::min(limits.max_num_tokens, limits.max_seq_len);
  const int32_t rows = std::min(kRows[choice % 4], most);
  const int32_t position = std::min(kPositions[choice / 4 % 4], limits.max_seq_len - rows);
  StepBatch batch;
  batch.clear(limits.groups.size());
  add_sequence(batch, rows, position);
  if (limits.max_batch_size > 1 && rows < limits.max_num_tokens)
    add_sequence(batch, 1, limits.max_seq_len > 40 ? 40 : 0);
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    batch.tokens[i] = static_cast<int32_t>((choice / 16 + 7 * i) % static_cast<size_t>(limits.vocab_size));
  }
  batch.tokens.back() = limits.vocab_size - 1;
  std::vector<float> logits(batch.logit_rows.size() * static_cast<size_t>(limits.vocab_size));
  backend.run(batch, logits.data());
  batch.copies.push_back({static_cast<int32_t>(limits.groups.size()) - 1, 0, 1, 5});
  backend.run(batch, logits.data());
}

}  // namespace
}  // namespace precast

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace precast;
  ::setenv("PRECAST_ISA", "avx2", 1);  // the corpus has engines of this level
  const MemoryFile memory(data, size);
  const uint32_t choice = crc32(data, size);
  try {
    const auto file = EngineFile::open(memory.path());
    const SectionFence fence(*file, size);
    const auto backend = make_cpu_backend(file, choice % 8 == 0 ? 2 : 1);
    run(*backend, choice / 8);
  } catch (const EngineError&) {
  } catch (const std::bad_alloc&) {  // of allocate_pages
  }
  return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  using namespace precast;
  auto image = take_apart({data, size});
  if (!image) return LLVMFuzzerMutate(data, size, max_size);
  EngineMutator(*image, seed).mutate();
  const std::vector<uint8_t> changed = put_together(*image);
  if (changed.size() > max_size) return size;
  std::copy(changed.begin(), changed.end(), data);
  return changed.size();
}
