// The inner loop of the int8 linear: `Rows` rows of each of several tiles times `Panels` panels.
#pragma once
#include "plugins/cpu/simd.h"

namespace precast::PRECAST_LEVEL {

// Columns of K that all tiles of a call are multiplied with before the next ones.
struct Part {
  int begin, k;        // first column, columns
  int group, columns;  // first group, columns of a group
  int64_t next;        // bytes from a weight to the one in its place of the next part
  int tiles;           // of the call
};

}  // namespace precast::PRECAST_LEVEL

#if defined(PRECAST_HAS_VNNI)
#include "plugins/linear/cpu/dot_i8_vnni.h"
#else
#include "plugins/linear/cpu/dot_i8_avx2.h"
#endif
