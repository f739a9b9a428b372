// Writes one token's K and V to its slot of a KV block.
#include "plugins/cpu/kv_element.h"

namespace precast::PRECAST_LEVEL {

namespace {

inline void convert(float x, float* y) { *y = x; }
inline void convert(float x, bf16_t* y) { *y = to_bf16(x); }
inline void convert(float x, int8_t* y) {
  constexpr float kShift = 0x1.8p23f;  // rounds to an integer, to nearest even
  *y = static_cast<int8_t>(static_cast<int32_t>((x + kShift) - kShift));
}
inline void convert(float x, fp8_t* y) { *y = to_fp8(x); }

inline float largest_of(const int8_t*) { return 127.0f; }
inline float largest_of(const fp8_t*) { return kLargestFp8; }

template <typename T>
void put(const float* x, int n, T* to, int64_t stride) {
  for (int i = 0; i < n; ++i) convert(x[i], to + i * stride);
}

// max|x| / largest; 0 when that underflows, NaN when a value is not finite.
float scale_of(const float* x, int n, float largest) {
  uint32_t most = 0;  // magnitudes are ordered as their bits are, with infinity and NaN on top
  for (int i = 0; i < n; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, x + i, 4);
    bits &= 0x7FFFFFFFu;
    most = bits > most ? bits : most;
  }
  if (most >= 0x7F800000u) return __builtin_nanf("");
  float magnitude;
  __builtin_memcpy(&magnitude, &most, 4);
  return magnitude / largest;
}

template <typename T>
void put_scaled(const float* x, int n, T* to, int64_t stride, float* scale) {
  const float largest = largest_of(to);
  *scale = scale_of(x, n, largest);
  const bool usable = *scale > 0;
  for (int i = 0; i < n; ++i) {
    float y = usable ? x[i] / *scale : 0.0f;
    y = y > largest ? largest : y < -largest ? -largest : y;  // a denormal scale is rounded: y can pass it
    convert(y, to + i * stride);
  }
}

template <typename T>
void append(const float* k, const float* v, int head_size, T* block, int slot) {
  const int64_t half = int64_t{kPageTokens} * head_size;
  T* keys = block + slot;                                // a column of [head_size][kPageTokens]
  T* values = block + half + int64_t{slot} * head_size;  // a row of [kPageTokens][head_size]
  if constexpr (kScaled<T>) {
    float* scales = reinterpret_cast<float*>(block + 2 * half) + slot;
    put_scaled(k, head_size, keys, kPageTokens, scales);
    put_scaled(v, head_size, values, 1, scales + kPageTokens);
  } else {
    put(k, head_size, keys, kPageTokens);
    put(v, head_size, values, 1);
  }
}

}  // namespace

void kv_append(const float* k, const float* v, int head_size, KvDType dtype, void* block, int slot) {
  with_element(dtype, [&]<typename T>(T*) { append(k, v, head_size, static_cast<T*>(block), slot); });
}

}  // namespace precast::PRECAST_LEVEL
