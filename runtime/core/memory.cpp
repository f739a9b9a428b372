#include "runtime/core/memory.h"

#include <sys/mman.h>

#include <new>
#include <utility>

#include "runtime/core/red_zone.h"

namespace precast {

Memory::Memory(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  void* data = ::mmap(nullptr, bytes + kRedZone, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  ::madvise(data, bytes, MADV_HUGEPAGE);  // where the kernel has none, small pages do
  data_ = static_cast<std::byte*>(data);
  forbid(data_ + bytes);
}

Memory::~Memory() {
  if (data_ == nullptr) return;
  allow(data_ + size_);
  ::munmap(data_, size_ + kRedZone);
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace precast
