// The epilogues with an activation function.
#include "plugins/linear/cpu/epilogue.h"

#include "plugins/cpu/activation.h"

namespace precast::PRECAST_LEVEL {

namespace {

template <Activation kind>
void finish_act(const float* acc, int rows, int panel, int panels, const float* scale, const LinearOut& out) {
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
void finish_gated(const float* acc, int rows, int panel, int panels, const float* scale, const LinearOut& out) {
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

}  // namespace

void finish_activated(const float* acc, int rows, int panel, int panels, const float* scale, const LinearOut& out) {
  with_activation(out.activation, [&]<Activation kind>() {
    if (out.epilogue == Epilogue::act) {
      finish_act<kind>(acc, rows, panel, panels, scale, out);
    } else {
      finish_gated<kind>(acc, rows, panel, panels, scale, out);
    }
  });
}

}  // namespace precast::PRECAST_LEVEL
