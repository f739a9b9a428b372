#include "runtime/core/cpu_op_maker.h"

#include <cmath>
#include <map>
#include <string>

#include "plugins/cpu/activation_names.h"

namespace precast {

bool is_elementwise(const std::string& kernel) {
  return kernel == "activation" || kernel == "add" || kernel == "gated_activation" || kernel == "scale" ||
         kernel == "softcap";
}

std::unique_ptr<CpuOp> CpuOpMaker::make() const {
  static const std::map<std::string, std::unique_ptr<CpuOp> (*)(const CpuOpMaker&)> kMakers = {
      {"activation", make_activation},
      {"add", make_add},
      {"embed", make_embed},
      {"gated_activation", make_gated_activation},
      {"gather_rows", make_gather_rows},
      {"layer_norm", make_layer_norm},
      {"linear", make_linear},
      {"moe", make_moe},
      {"paged_attention", make_paged_attention},
      {"quantize", make_quantize},
      {"rms_norm", make_rms_norm},
      {"rope_kv_append", make_rope_kv_append},
      {"scale", make_scale},
      {"softcap", make_softcap},
  };
  const auto maker = kMakers.find(op.kernel);
  expect(maker != kMakers.end(), "this precast has no kernel " + op.kernel + "; build the engine again");
  return maker->second(*this);
}

void CpuOpMaker::expect(bool ok, const std::string& otherwise) {
  if (!ok) throw EngineError(otherwise);
}

void CpuOpMaker::expect_counts(size_t inputs, size_t weights) const {
  const auto check = [](const char* what, size_t has, size_t wants) {
    expect(has == wants, "it has " + std::to_string(has) + " " + what + " instead of " + std::to_string(wants));
  };
  check("inputs", op.inputs.size(), inputs);
  check("outputs", op.outputs.size(), 1);
  check("weights", op.weights.size(), weights);
}

const CpuValue& CpuOpMaker::input(size_t i) const {
  const CpuValue& value = context.values[static_cast<size_t>(op.inputs[i])];
  expect(value.data != nullptr, "it reads the logits");
  return value;
}

namespace {

const CpuValue& expect_f32(const CpuValue& value, int64_t columns, bool sampled_rows, const std::string& name) {
  CpuOpMaker::expect(!value.quantized && value.columns == columns && value.sampled_rows == sampled_rows,
                     name + " is not f32 [" + (sampled_rows ? "S, " : "T, ") + std::to_string(columns) + "]");
  return value;
}

}  // namespace

const CpuValue& CpuOpMaker::f32_input(size_t i, int64_t columns, bool sampled_rows) const {
  return expect_f32(input(i), columns, sampled_rows, "input " + std::to_string(i));
}

const CpuValue& CpuOpMaker::elementwise_input(size_t i, const CpuValue& like) const {
  const CpuValue& value = context.values[static_cast<size_t>(op.inputs[i])];
  return expect_f32(value, like.columns, like.sampled_rows, "input " + std::to_string(i));
}

const CpuValue& CpuOpMaker::output() const {
  const CpuValue& value = context.values[static_cast<size_t>(op.outputs[0])];
  expect(value.data != nullptr || op.kernel == "linear" || is_elementwise(op.kernel),
         "only a linear can write the logits");
  return value;
}

const CpuValue& CpuOpMaker::f32_output(int64_t columns, bool sampled_rows) const {
  return expect_f32(output(), columns, sampled_rows, "the output");
}

const Section& CpuOpMaker::section(size_t i) const {
  const Section* section = context.file->find(op.weights[i]);
  expect(section != nullptr, "the file has no section " + op.weights[i]);
  return *section;
}

const float* CpuOpMaker::vector(size_t i, int64_t n) const {
  const Section& s = section(i);
  expect(s.tag == "vector.f32" && s.length == static_cast<uint64_t>(n) * 4,
         "section " + s.name + " is no vector of " + std::to_string(n) + " floats");
  return reinterpret_cast<const float*>(context.file->bytes(s).data());
}

float CpuOpMaker::f32_attribute(const std::string& key) const {
  const auto value = static_cast<float>(op.attributes.real(key));
  expect(std::isfinite(value), "attribute " + key + " is beyond f32");
  return value;
}

int CpuOpMaker::layer() const {
  return static_cast<int>(op.attributes.integer("layer", 0, context.model.num_layers - 1));
}

Activation CpuOpMaker::activation() const {
  const std::string& name = op.attributes.text("activation");
  const std::optional<Activation> found = activation_named(name);
  expect(found.has_value(), "this precast has no activation function " + name);
  return *found;
}

WeightKind weight_kind(const CpuOpMaker& maker, const Section& section) {
  if (section.tag == "panel16.f32") return WeightKind::f32;
  if (section.tag == "panel16.bf16") return WeightKind::bf16;
  CpuOpMaker::expect(section.tag == maker.context.kernels.weights_i8,
                     "section " + section.name + " has the layout " + section.tag + ", which " +
                         maker.context.kernels.isa + " kernels do not read");
  return WeightKind::i8;
}

int64_t padded_k(WeightKind kind, int64_t k, int64_t group) {
  if (kind == WeightKind::i8) return round_up(k, group == 0 ? 4 : group);
  return kind == WeightKind::bf16 ? round_up(k, 2) : k;
}

LinearWeights packed_weights(const CpuOpMaker& maker, const Section& section, int64_t padded_n, int64_t padded_k,
                             int32_t group, const float* scale) {
  const WeightKind kind = weight_kind(maker, section);
  const int64_t bytes = kind == WeightKind::i8 ? 1 : kind == WeightKind::bf16 ? 2 : 4;
  const auto row_bytes = static_cast<uint64_t>(padded_k * bytes);  // the product with padded_n might not fit 64 bits
  CpuOpMaker::expect(section.length % row_bytes == 0 && section.length / row_bytes == static_cast<uint64_t>(padded_n),
                     "section " + section.name + " has " + std::to_string(section.length) +
                         " bytes, which is not what " + std::to_string(padded_n) + " × " + std::to_string(padded_k) +
                         " weights of layout " + section.tag + " take");
  return {maker.context.file->bytes(section).data(), scale, static_cast<int32_t>(padded_n),
          static_cast<int32_t>(padded_k), group};
}

}  // namespace precast
