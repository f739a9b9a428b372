// Quantizes activation rows to int8, per token or per token and group of columns, into the tile that linear_i8 reads.
#include "plugins/cpu/simd.h"

namespace precast::PRECAST_LEVEL {

void quantize_tile(const float* x, int64_t ldx, int rows, int cols, int k, int group, const QuantizedTile& out) {
  const int columns = group == 0 ? k : group;
  for (int r = 0; r < rows; ++r) {
    for (int g = 0; g * columns < k; ++g) {
      const int begin = g * columns;
      const int end = begin + columns < cols ? begin + columns : cols;
      float largest = 0;
      for (int c = begin; c < end; ++c) {
        const float a = __builtin_fabsf(x[r * ldx + c]);
        if (!(a <= largest)) largest = a;  // a NaN stays: nothing is ≤ it
        if (largest != largest) break;
      }
      float scale = largest / 127.0f;
      if (!(largest <= 3.40282347e38f)) scale = __builtin_nanf("");
      int32_t sum = 0;
      for (int c = begin; c < begin + columns; ++c) {
        int q = 0;
        if (c < end && scale > 0) {
          const float v = __builtin_rintf(x[r * ldx + c] / scale);
          q = static_cast<int>(v > 127.0f ? 127.0f : v < -127.0f ? -127.0f : v);
        }
        sum += q;
        out.q[(int64_t{c / 4} * rows + r) * 4 + c % 4] = static_cast<int8_t>(q);
      }
      out.scale[int64_t{g} * rows + r] = scale;
      out.sum[int64_t{g} * rows + r] = sum;
    }
  }
}

}  // namespace precast::PRECAST_LEVEL
