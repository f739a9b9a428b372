// What this level's arithmetic can do at most on a CPU: the multiplications of the linears on registers, and reading.
// The loops do nothing else, so that what they reach is the machine's limit and not theirs.
#include "plugins/linear/cpu/dot_float.h"
#include "plugins/linear/cpu/dot_i8.h"

namespace precast::PRECAST_LEVEL {

namespace {

constexpr int kChains = 10;  // independent sums: two pipes of up to five cycles; and 16 registers hold them

#if defined(PRECAST_HAS_VNNI)
constexpr int64_t kI8Products = 4 * kLanes;
using I8 = I32;
inline I8 i8_zero() { return set1(int32_t{0}); }
inline void multiply_i8(I8& sum, I8 w, I8 x) { dot4(sum, w, x); }
#else
constexpr int64_t kI8Products = 32;

__attribute__((always_inline)) inline void multiply_i8(__m256i& sum, __m256i w, __m256i x) {
  __m256i t;
  asm volatile(
      "vpmaddubsw %3, %2, %1\n\t"
      "vpmaddwd %2, %1, %1\n\t"
      "vpaddd %1, %0, %0"
      : "+x"(sum), "=&x"(t)
      : "x"(w), "x"(x));
}
using I8 = __m256i;
inline I8 i8_zero() { return _mm256_setzero_si256(); }
#endif

// Makes the compiler believe that somebody reads it.
template <typename Vector>
__attribute__((always_inline)) inline void keep(const Vector& x) {
#if defined(PRECAST_ISA_AVX512) && defined(PRECAST_EMULATE_ISA)
  asm volatile("" ::"m"(x));  // no register is as wide
#else
  asm volatile("" ::"v"(x));
#endif
}

struct Int8 {
  using Vector = I8;
  static Vector zero() { return i8_zero(); }
  static void multiply_add(Vector& sum, Vector x) { multiply_i8(sum, x, x); }
};

template <typename Weight>
struct Float {
  using Vector = F32;
  static Vector zero() { return PRECAST_LEVEL::zero(); }
  static void multiply_add(Vector& sum, Vector x) { Weight::multiply_add(sum, x, x); }
};

// Loops are unrolled and nothing takes the address of a sum, so that GCC 12 keeps all of them in registers.
template <typename Kind>
void repeat(int64_t rounds) {
  const typename Kind::Vector x = Kind::zero();
  typename Kind::Vector sums[kChains];
#pragma GCC unroll 10
  for (int i = 0; i < kChains; ++i) sums[i] = x;
  for (int64_t n = 0; n < rounds; ++n) {
#pragma GCC unroll 10
    for (int i = 0; i < kChains; ++i) Kind::multiply_add(sums[i], x);
  }
#pragma GCC unroll 10
  for (int i = 0; i < kChains; ++i) keep(sums[i]);
}

}  // namespace

int64_t peak_i8(int64_t rounds) {
  repeat<Int8>(rounds);
  return 2 * kI8Products * kChains * rounds;
}

int64_t peak_f32(int64_t rounds) {
  repeat<Float<Float32>>(rounds);
  return 2 * int64_t{kLanes} * kChains * rounds;
}

int64_t peak_bf16(int64_t rounds) {
  repeat<Float<Bf16>>(rounds);
  return 2 * int64_t{kLanes} * (Bf16::kStep / Bf16::kPasses) * kChains * rounds;
}

void read_bytes(const void* data, int64_t bytes) {
  constexpr int64_t kLine = 64, kAhead = 2048;  // as the linears fetch
  const auto* p = static_cast<const char*>(data);
  __m256i seen = _mm256_setzero_si256();
  for (const char* end = p + bytes; p < end; p += kLine) {
    seen = _mm256_or_si256(seen, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    seen = _mm256_or_si256(seen, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32)));
    _mm_prefetch(p + kAhead, _MM_HINT_T0);
  }
  asm volatile("" ::"x"(seen));
}

}  // namespace precast::PRECAST_LEVEL
