// Room behind a value that shares an allocation with others, forbidden under AddressSanitizer: so that it sees a step
// over the border of each of them, not only of the allocation. Other builds have none.
#pragma once
#include <cstddef>
#include <utility>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PRECAST_RED_ZONES 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define PRECAST_RED_ZONES 1
#endif

#if defined(PRECAST_RED_ZONES)
#include <sanitizer/asan_interface.h>
#endif

namespace precast {

#if defined(PRECAST_RED_ZONES)
inline constexpr size_t kRedZone = 64;  // bytes
inline void forbid(const void* p) { __asan_poison_memory_region(p, kRedZone); }
inline void allow(const void* p) { __asan_unpoison_memory_region(p, kRedZone); }
#else
inline constexpr size_t kRedZone = 0;
inline void forbid(const void*) {}
inline void allow(const void*) {}
#endif

// kRedZone bytes from `begin` on are forbidden while it lives, which is not longer than the allocation.
class RedZone {
 public:
  explicit RedZone(const void* begin) : begin_(begin) { forbid(begin_); }
  ~RedZone() {
    if (begin_ != nullptr) allow(begin_);
  }
  RedZone(RedZone&& other) noexcept : begin_(std::exchange(other.begin_, nullptr)) {}
  RedZone& operator=(RedZone&& other) noexcept {
    std::swap(begin_, other.begin_);
    return *this;
  }

 private:
  const void* begin_;
};

}  // namespace precast
