// The names of the KV dtypes, as plans have them.
#pragma once
#include <optional>
#include <string>

#include "plugins/cpu/kernels.h"

namespace precast {

inline std::optional<KvDType> kv_dtype_named(const std::string& name) {
  if (name == "float32") return KvDType::f32;
  if (name == "bfloat16") return KvDType::bf16;
  if (name == "int8") return KvDType::int8;
  if (name == "fp8") return KvDType::fp8;
  return std::nullopt;
}

}  // namespace precast
