// The plan of an engine (docs/engine-format.md, plan.v0) as data. Reading checks its form: every index lies inside its
// list. Whether an op makes sense is checked by the backend that will run it.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace precast {

using Attribute = std::variant<int64_t, double, std::string>;

class Attributes {
 public:
  std::map<std::string, Attribute> values;

  // Each throws EngineError when the attribute is missing, of another type, or outside `low` … `high`.
  int64_t integer(const std::string& key, int64_t low, int64_t high) const;
  double real(const std::string& key) const;  // finite
  const std::string& text(const std::string& key) const;

 private:
  const Attribute& at(const std::string& key) const;
};

struct PlanBuffer {
  std::string name;
  bool quantized;     // int8 tiles with scales; else f32
  bool sampled_rows;  // S rows, those whose logits are wanted; else T, all tokens of the step
  int32_t columns;    // ≥ 1
  int32_t group;      // of a quantized buffer: columns that share a scale; 0: all
  int32_t slot;       // < number of buffers
};

struct PlanOp {
  std::string kernel;
  std::vector<int32_t> inputs, outputs;  // buffers
  std::vector<std::string> weights;      // sections
  Attributes attributes;
};

struct Plan {
  Attributes attributes;
  std::vector<PlanBuffer> buffers;
  std::vector<PlanOp> ops;
};

// Throws EngineError for bytes that are no plan. Allocates at most a small multiple of `bytes`.
Plan read_plan(std::span<const uint8_t> bytes);

}  // namespace precast
