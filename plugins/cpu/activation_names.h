// The names of the activation functions, as plans have them.
#pragma once
#include <optional>
#include <string>

#include "plugins/cpu/kernels.h"

namespace precast {

inline constexpr const char* kActivationNames = "silu, gelu, gelu_tanh, gelu_quick, relu and relu2";

inline std::optional<Activation> activation_named(const std::string& name) {
  if (name == "silu") return Activation::silu;
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_tanh") return Activation::gelu_tanh;
  if (name == "gelu_quick") return Activation::gelu_quick;
  if (name == "relu") return Activation::relu;
  if (name == "relu2") return Activation::relu2;
  return std::nullopt;
}

}  // namespace precast
