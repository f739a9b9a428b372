// The CRC-32 of zlib and PNG (reflected polynomial 0xEDB88320).
#pragma once
#include <cstddef>
#include <cstdint>

namespace precast {

// `crc`: the result for the bytes before, to go on with; 0 at the start.
uint32_t crc32(const void* data, size_t size, uint32_t crc = 0);

}  // namespace precast
