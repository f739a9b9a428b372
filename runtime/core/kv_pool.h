// The KV pages of one layer group: one allocation, [page][layer of the group][KV head][block].
#pragma once
#include <cstdint>

#include "plugins/cpu/kernels.h"
#include "runtime/core/core.h"
#include "runtime/core/memory.h"

namespace precast {

class KvPool {
 public:
  KvPool(int num_layers, int num_kv_heads, int head_size, KvDType dtype)
      : num_kv_heads_(num_kv_heads),
        block_bytes_(kv_block_bytes(head_size, dtype)),
        page_bytes_(block_bytes_ * num_layers * num_kv_heads) {}

  int64_t page_bytes() const { return page_bytes_; }
  int32_t num_pages() const { return num_pages_; }

  // Zeroed pages; they take memory when they are first written. Throws std::bad_alloc.
  void allocate(int32_t num_pages) {
    memory_ = Memory(static_cast<size_t>(page_bytes_) * static_cast<size_t>(num_pages));
    num_pages_ = num_pages;
  }

  // The block of one page, layer of the group and KV head; kernels.h says what is in it.
  std::byte* block(PageId page, int layer, int head) const {
    return memory_.data() + page * page_bytes_ + (int64_t{layer} * num_kv_heads_ + head) * block_bytes_;
  }

 private:
  int num_kv_heads_;
  int64_t block_bytes_, page_bytes_;
  int32_t num_pages_ = 0;
  Memory memory_;
};

}  // namespace precast
