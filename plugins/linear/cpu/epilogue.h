// What happens to the dot products of a tile before they are stored.
#pragma once
#include "plugins/cpu/simd.h"

namespace precast::PRECAST_LEVEL {

// One vector of y before the epilogue: acc · scale + bias, each step rounded; scale and bias may be null.
inline F32 scaled(const float* acc, const float* scale, const float* bias, int64_t channel) {
  F32 v = load(acc);
  if (scale != nullptr) v = mul(v, load(scale + channel));
  if (bias != nullptr) v = add(v, load(bias + channel));
  return v;
}

// The epilogues act and gated, as `finish` below. In a file of their own: beside the dot products, their code made
// GCC 12 compile those worse (bf16 on AVX2 took half as long again).
void finish_activated(const float* acc, int rows, int panel, int panels, const float* scale, const LinearOut& out);

// acc [panels][rows][16]: the dot products of `panels` panels from `panel` on. Stores their part of y. With
// Epilogue::gated, `panel` and `panels` are even.
inline void finish(const float* acc, int rows, int panel, int panels, const float* scale, const LinearOut& out) {
  if (out.epilogue == Epilogue::act || out.epilogue == Epilogue::gated) {
    return finish_activated(acc, rows, panel, panels, scale, out);
  }
  const int64_t panel_stride = int64_t{kPanel} * rows;
  for (int r = 0; r < rows; ++r) {
    float* y = out.y + r * out.ldy;
    for (int p = 0; p < panels; ++p) {
      for (int i = 0; i < kPanel; i += kLanes) {
        const int64_t channel = int64_t{kPanel} * (panel + p) + i;
        F32 v = scaled(acc + p * panel_stride + r * kPanel + i, scale, out.bias, channel);
        if (out.epilogue == Epilogue::add) v = add(load(out.residual + r * out.ldy + channel), v);
        store(y + channel, v);
      }
    }
  }
}

}  // namespace precast::PRECAST_LEVEL
