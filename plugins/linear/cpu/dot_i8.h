// The inner loop of the int8 linear: `Rows` rows of a tile times `Panels` panels.
#pragma once
#include "plugins/cpu/simd.h"

#if defined(PRECAST_HAS_VNNI)
#include "plugins/linear/cpu/dot_i8_vnni.h"
#else
#include "plugins/linear/cpu/dot_i8_avx2.h"
#endif
