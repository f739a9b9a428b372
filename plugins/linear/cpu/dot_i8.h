// The inner loop of the int8 linear: `Rows` rows of a tile times `Panels` panels.
#pragma once
#if defined(PRECAST_ISA_AVX512)
#include "plugins/linear/cpu/dot_i8_avx512.h"
#else
#include "plugins/linear/cpu/dot_i8_avx2.h"
#endif
