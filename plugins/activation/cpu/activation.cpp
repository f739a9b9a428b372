// Activation functions of one row, alone or as a gate.
#include "plugins/cpu/activation.h"

namespace precast::PRECAST_LEVEL {

void activation(Activation kind, const float* x, int n, float* y) {
  with_activation(kind, [&]<Activation k>() {
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) store(y + i, activate<k>(load(x + i)));
    if (i < n) store_first(y + i, n - i, activate<k>(load_first(x + i, n - i)));
  });
}

void gated_activation(Activation kind, const float* gate, const float* up, int n, float* y) {
  with_activation(kind, [&]<Activation k>() {
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) store(y + i, mul(activate<k>(load(gate + i)), load(up + i)));
    if (i < n) {
      store_first(y + i, n - i, mul(activate<k>(load_first(gate + i, n - i)), load_first(up + i, n - i)));
    }
  });
}

}  // namespace precast::PRECAST_LEVEL
