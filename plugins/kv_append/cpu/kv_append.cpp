// Writes one token's K and V to its slot of a KV block.
#include "plugins/cpu/simd.h"

namespace precast::PRECAST_LEVEL {

namespace {

inline void convert(float x, float* y) { *y = x; }
inline void convert(float x, bf16_t* y) { *y = to_bf16(x); }

template <typename T>
void append(const float* k, const float* v, int head_size, T* block, int slot) {
  T* keys = block + slot;                                         // a column of [head_size][kPageTokens]
  T* values = block + int64_t{head_size} * (kPageTokens + slot);  // a row of [kPageTokens][head_size]
  for (int i = 0; i < head_size; ++i) convert(k[i], keys + int64_t{i} * kPageTokens);
  for (int i = 0; i < head_size; ++i) convert(v[i], values + i);
}

}  // namespace

void kv_append(const float* k, const float* v, int head_size, KvDType dtype, void* block, int slot) {
  if (dtype == KvDType::f32) {
    append(k, v, head_size, static_cast<float*>(block), slot);
  } else {
    append(k, v, head_size, static_cast<bf16_t*>(block), slot);
  }
}

}  // namespace precast::PRECAST_LEVEL
