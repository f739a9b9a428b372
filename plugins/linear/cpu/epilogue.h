// What happens to the dot products of a tile before they are stored.
#pragma once
#include "plugins/cpu/activation.h"

namespace precast::PRECAST_LEVEL {

// One vector of y before the epilogue: acc · scale + bias, each step rounded; scale and bias may be null.
inline F32 scaled(const float* acc, const float* scale, const float* bias, int64_t channel) {
  F32 v = load(acc);
  if (scale != nullptr) v = mul(v, load(scale + channel));
  if (bias != nullptr) v = add(v, load(bias + channel));
  return v;
}

// The epilogues with an activation function stay out of line: one copy serves the linears of all row counts.
template <Activation kind>
__attribute__((noinline)) void finish_act(const float* acc, int rows, int panel, int panels, const float* scale,
                                          const LinearOut& out) {
  for (int r = 0; r < rows; ++r) {
    for (int p = 0; p < panels; ++p) {
      for (int i = 0; i < kPanel; i += kLanes) {
        const int64_t channel = int64_t{kPanel} * (panel + p) + i;
        const F32 v = scaled(acc + (int64_t{p} * rows + r) * kPanel + i, scale, out.bias, channel);
        store(out.y + r * out.ldy + channel, activate<kind>(v));
      }
    }
  }
}

template <Activation kind>
__attribute__((noinline)) void finish_gated(const float* acc, int rows, int panel, int panels, const float* scale,
                                            const LinearOut& out) {
  const int64_t panel_stride = int64_t{kPanel} * rows;
  for (int r = 0; r < rows; ++r) {
    float* y = out.y + r * out.ldy;
    for (int p = 0; p < panels; p += 2) {
      for (int i = 0; i < kPanel; i += kLanes) {
        const float* gate = acc + p * panel_stride + r * kPanel + i;
        const int64_t channel = int64_t{kPanel} * (panel + p) + i;
        const F32 g = scaled(gate, scale, out.bias, channel);
        const F32 u = scaled(gate + panel_stride, scale, out.bias, channel + kPanel);
        store(y + int64_t{kPanel} * ((panel + p) / 2) + i, mul(activate<kind>(g), u));
      }
    }
  }
}

// acc [panels][rows][16]: the dot products of `panels` panels from `panel` on. Stores their part of y. With
// Epilogue::gated, `panel` and `panels` are even.
inline void finish(const float* acc, int rows, int panel, int panels, const float* scale, const LinearOut& out) {
  if (out.epilogue == Epilogue::act || out.epilogue == Epilogue::gated) {
    return with_activation(out.activation, [&]<Activation kind>() {
      const auto to = out.epilogue == Epilogue::act ? finish_act<kind> : finish_gated<kind>;
      to(acc, rows, panel, panels, scale, out);
    });
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
