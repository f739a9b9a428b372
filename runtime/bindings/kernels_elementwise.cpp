// Kernels that work on each element alone, of any ISA level, on numpy arrays. For tests.
#include <nanobind/stl/string.h>

#include <string>

#include "plugins/cpu/activation_names.h"
#include "plugins/cpu/isa.h"
#include "plugins/cpu/kernels.h"
#include "runtime/bindings/arrays.h"
#include "runtime/bindings/bindings.h"

namespace precast {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Row = Read<float, 1>;
using RowOut = Write<float, 1>;

int length(const Row& x, const RowOut& y) {
  require(x.shape(0) == y.shape(0) && x.shape(0) <= 1u << 30, "x and y differ in length");
  return static_cast<int>(x.shape(0));
}

}  // namespace

Activation activation_of(const std::string& name) {
  const std::optional<Activation> found = activation_named(name);
  if (found) return *found;
  throw nb::value_error(("unknown activation \"" + name + "\"; there are " + kActivationNames).c_str());
}

void bind_elementwise_kernels(nb::module_& m) {
  m.def(
      "activation",
      [](const std::string& level, const std::string& kind, const Row& x, const RowOut& y) {
        kernel_table(level).activation(activation_of(kind), x.data(), length(x, y), y.data());
      },
      "level"_a, "kind"_a, "x"_a, "y"_a, "y f32 [n] = activation(x).");
  m.def(
      "gated_activation",
      [](const std::string& level, const std::string& kind, const Row& gate, const Row& up, const RowOut& y) {
        const int n = length(gate, y);
        length(up, y);
        kernel_table(level).gated_activation(activation_of(kind), gate.data(), up.data(), n, y.data());
      },
      "level"_a, "kind"_a, "gate"_a, "up"_a, "y"_a, "y f32 [n] = activation(gate) · up.");
  m.def(
      "moe_route",
      [](const std::string& level, const Row& logits, bool normalize, const Write<int32_t, 1>& ids,
         const RowOut& weights) {
        require(ids.shape(0) >= 1 && ids.shape(0) <= logits.shape(0) && logits.shape(0) <= 1u << 16 &&
                    weights.shape(0) == ids.shape(0),
                "ids and weights differ in length, are empty, or are more than there are experts");
        kernel_table(level).moe_route(logits.data(), static_cast<int>(logits.shape(0)), static_cast<int>(ids.shape(0)),
                                      normalize, ids.data(), weights.data());
      },
      "level"_a, "logits"_a, "normalize"_a, "ids"_a, "weights"_a,
      "ids i32 and weights f32 [top_k] of the chosen experts, from router logits f32 [experts].");
  m.def(
      "sigmoid",
      [](const std::string& level, const Row& x, const RowOut& y) {
        kernel_table(level).sigmoid(x.data(), length(x, y), y.data());
      },
      "level"_a, "x"_a, "y"_a, "y f32 [n] = 1 / (1 + e^−x).");
  m.def(
      "scale",
      [](const std::string& level, const Row& x, float factor, const RowOut& y) {
        kernel_table(level).scale(x.data(), factor, length(x, y), y.data());
      },
      "level"_a, "x"_a, "factor"_a, "y"_a, "y f32 [n] = x · factor.");
  m.def(
      "add",
      [](const std::string& level, const Row& x, const Row& y, const RowOut& z) {
        const int n = length(x, z);
        length(y, z);
        kernel_table(level).add(x.data(), y.data(), n, z.data());
      },
      "level"_a, "x"_a, "y"_a, "z"_a, "z f32 [n] = x + y.");
  m.def(
      "clip",
      [](const std::string& level, const Row& x, float limit, const RowOut& y) {
        kernel_table(level).clip(x.data(), limit, length(x, y), y.data());
      },
      "level"_a, "x"_a, "limit"_a, "y"_a, "y f32 [n] = x between −limit and limit.");
  m.def(
      "softcap",
      [](const std::string& level, const Row& x, float cap, const RowOut& y) {
        kernel_table(level).softcap(x.data(), cap, length(x, y), y.data());
      },
      "level"_a, "x"_a, "cap"_a, "y"_a, "y f32 [n] = cap · tanh(x / cap).");
}

}  // namespace precast
