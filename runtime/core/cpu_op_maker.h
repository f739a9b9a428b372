// From an op of the plan to one that runs. All checks happen here: what an op relies on while it runs was checked when
// it was made.
#pragma once
#include <cstdint>
#include <memory>

#include "runtime/core/cpu_op.h"
#include "runtime/core/plan.h"

namespace precast {

class CpuOpMaker {
 public:
  CpuOpMaker(CpuContext& context, const PlanOp& op) : context(context), op(op) {}

  // Throws EngineError: an unknown kernel; an operand, weight or attribute that does not fit.
  std::unique_ptr<CpuOp> make() const;

  CpuContext& context;
  const PlanOp& op;

  // The checks that makers of single ops share; each throws EngineError.
  static void expect(bool ok, const std::string& otherwise);
  void expect_counts(size_t inputs, size_t weights) const;  // and one output
  const CpuValue& input(size_t i) const;
  const CpuValue& f32_input(size_t i, int64_t columns, bool sampled_rows) const;
  const CpuValue& elementwise_input(size_t i, const CpuValue& like) const;  // f32 of `like`'s shape; may be the logits
  const CpuValue& output() const;
  const CpuValue& f32_output(int64_t columns, bool sampled_rows) const;
  const Section& section(size_t i) const;
  const float* vector(size_t i, int64_t n) const;     // a section of layout vector.f32 with n values
  float f32_attribute(const std::string& key) const;  // finite
  int layer() const;
  Activation activation() const;  // the function that the attribute "activation" names
};

// Whether a kernel computes each element from the same element of its inputs, so that it may write over one of them.
bool is_elementwise(const std::string& kernel);

// Packed weights [n, k] of a section, both before padding.
enum class WeightKind { i8, bf16, f32 };
WeightKind weight_kind(const CpuOpMaker& maker, const Section& section);  // throws for a layout that is no panel16*
// k padded as the packer pads it; `group` as in LinearWeights.
int64_t padded_k(WeightKind kind, int64_t k, int64_t group);
// `padded_n`: a multiple of 16. Throws EngineError when the section's length is not what it should be.
LinearWeights packed_weights(const CpuOpMaker& maker, const Section& section, int64_t padded_n, int64_t padded_k,
                             int32_t group, const float* scale);

std::unique_ptr<CpuOp> make_activation(const CpuOpMaker& maker);
std::unique_ptr<CpuOp> make_gated_activation(const CpuOpMaker& maker);
std::unique_ptr<CpuOp> make_scale(const CpuOpMaker& maker);
std::unique_ptr<CpuOp> make_add(const CpuOpMaker& maker);
std::unique_ptr<CpuOp> make_softcap(const CpuOpMaker& maker);
std::unique_ptr<CpuOp> make_moe(const CpuOpMaker& maker);
std::unique_ptr<CpuOp> make_embed(const CpuOpMaker& maker);
std::unique_ptr<CpuOp> make_gather_rows(const CpuOpMaker& maker);
std::unique_ptr<CpuOp> make_rms_norm(const CpuOpMaker& maker);
std::unique_ptr<CpuOp> make_layer_norm(const CpuOpMaker& maker);
std::unique_ptr<CpuOp> make_quantize(const CpuOpMaker& maker);
std::unique_ptr<CpuOp> make_linear(const CpuOpMaker& maker);
std::unique_ptr<CpuOp> make_rope_kv_append(const CpuOpMaker& maker);
std::unique_ptr<CpuOp> make_paged_attention(const CpuOpMaker& maker);

}  // namespace precast
