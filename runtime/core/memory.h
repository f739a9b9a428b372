// Memory straight from the system: zeroed, on page borders, and not there before it is touched.
#pragma once
#include <cstddef>

namespace precast {

class Memory {
 public:
  Memory() = default;
  // Throws std::bad_alloc. Asks for huge pages, which spare TLB misses on large tables.
  explicit Memory(size_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace precast
