// Philox4x32-10, the counter-based generator of J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as
// easy as 1, 2, 3" (SC 2011): a number is a pure function of key and counter, so no state depends on what else runs.
#pragma once
#include <array>
#include <cstdint>

namespace precast {

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// 64 random bits for the token at `position` of a sequence.
inline uint64_t random_bits(uint64_t seed, uint32_t sequence_index, uint32_t position) {
  const auto r =
      philox4x32({position, sequence_index, 0, 0}, {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return (uint64_t{r[1]} << 32) | r[0];
}

}  // namespace precast
