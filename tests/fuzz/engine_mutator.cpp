#include "tests/fuzz/engine_mutator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "tests/fuzz/fuzzer.h"

namespace precast {

namespace {

constexpr size_t kMaxSectionBytes = 1 << 16;

constexpr std::array<int64_t, 38> kIntegers = {0,
                                               1,
                                               2,
                                               3,
                                               4,
                                               5,
                                               7,
                                               8,
                                               12,
                                               15,
                                               16,
                                               17,
                                               24,
                                               31,
                                               32,
                                               33,
                                               48,
                                               63,
                                               64,
                                               65,
                                               96,
                                               128,
                                               255,
                                               256,
                                               257,
                                               512,
                                               1023,
                                               1 << 16,
                                               1 << 20,
                                               1 << 26,
                                               (1 << 26) + 1,
                                               1 << 27,
                                               INT32_MAX,
                                               1LL << 31,
                                               1LL << 32,
                                               INT64_MAX,
                                               INT64_MIN,
                                               -1};

constexpr std::array<double, 14> kReals = {0.0,
                                           -0.0,
                                           1.0,
                                           -1.0,
                                           0.5,
                                           1e-5,
                                           1e-45,
                                           1e-300,
                                           3e38,
                                           1e300,
                                           std::numeric_limits<double>::infinity(),
                                           -std::numeric_limits<double>::infinity(),
                                           std::numeric_limits<double>::quiet_NaN(),
                                           1e4};

const std::vector<std::string>& texts() {
  static const std::vector<std::string> kTexts = {
      "avx2",     "avx2_vnni", "avx512",     "float32",   "bfloat16",   "int8", "fp8",
      "none",     "add",       "act",        "gated",     "silu",       "gelu", "relu2",
      "rms_head", "rms_full",  "layer_head", "gelu_tanh", "gelu_quick", "relu", ""};
  return kTexts;
}

const std::vector<std::string>& kernels() {
  static const std::vector<std::string> kKernels = {
      "embed",          "rms_norm",        "layer_norm", "quantize", "linear", "activation", "gated_activation",
      "rope_kv_append", "paged_attention", "moe",        "scale",    "add",    "softcap",    "gather_rows"};
  return kKernels;
}

const std::vector<std::string>& tags() {
  static const std::vector<std::string> kTags = {"vector.f32",   "rows.f32",     "rows.bf16",   "panel16.f32",
                                                 "panel16.bf16", "panel16x4.s8", "panel16x4.u8"};
  return kTags;
}

}  // namespace

void EngineMutator::mutate() {
  for (size_t n = 1 + below(3); n > 0; --n) {
    switch (below(8)) {
      case 0:
        change_attributes(image_.plan.attributes);
        break;
      case 1:
        change_buffer();
        break;
      case 2:
        change_op();
        break;
      case 3:
        if (!image_.plan.ops.empty()) change_attributes(any(image_.plan.ops).attributes);
        break;
      case 4:
        change_order();
        break;
      case 5:
        change_section();
        break;
      case 6:
        if (!image_.sections.empty()) change_bytes(any(image_.sections).bytes);
        break;
      default:
        change_size();
    }
  }
}

int64_t EngineMutator::integer(int64_t old) {
  switch (below(5)) {
    case 0:
      return old == INT64_MAX ? old : old + 1;
    case 1:
      return old == INT64_MIN ? old : old - 1;
    case 2:
      return old / 2;
    default:
      return any(kIntegers);
  }
}

double EngineMutator::real() { return any(kReals); }

void EngineMutator::change(Attribute& value) {
  switch (below(8) == 0 ? below(3) : value.index()) {
    case 0:
      value = integer(std::holds_alternative<int64_t>(value) ? std::get<int64_t>(value) : 0);
      break;
    case 1:
      value = real();
      break;
    default:
      value = any(texts());
  }
}

void EngineMutator::change_attributes(Attributes& attributes) {
  if (attributes.values.empty()) return;
  const auto found = std::next(attributes.values.begin(), static_cast<std::ptrdiff_t>(below(attributes.values.size())));
  if (below(16) == 0) {
    attributes.values.erase(found);
  } else {
    change(found->second);
  }
}

void EngineMutator::change_buffer() {
  std::vector<PlanBuffer>& buffers = image_.plan.buffers;
  if (buffers.empty()) return;
  PlanBuffer& buffer = any(buffers);
  switch (below(6)) {
    case 0:
      buffer.quantized = !buffer.quantized;
      break;
    case 1:
      buffer.sampled_rows = !buffer.sampled_rows;
      break;
    case 2:
      buffer.columns = static_cast<int32_t>(integer(buffer.columns));
      break;
    case 3:
      buffer.group = static_cast<int32_t>(integer(buffer.group));
      break;
    case 4:
      buffer.slot = any(buffers).slot;
      break;
    default:
      buffers.push_back(buffer);
      buffers.back().slot = static_cast<int32_t>(below(buffers.size()));
  }
}

void EngineMutator::change_operands(std::vector<int32_t>& operands) {
  if (operands.empty() || below(4) == 0) operands.push_back(0);
  any(operands) = static_cast<int32_t>(below(image_.plan.buffers.size() + 1));
  if (below(8) == 0) operands.pop_back();
}

void EngineMutator::change_op() {
  if (image_.plan.ops.empty()) return;
  PlanOp& op = any(image_.plan.ops);
  switch (below(6)) {
    case 0:
      change_operands(op.inputs);
      break;
    case 1:
      change_operands(op.outputs);
      break;
    case 2:
      op.kernel = any(kernels());
      break;
    case 3:
      op.weights = any(image_.plan.ops).weights;
      break;
    case 4:
      op.attributes = any(image_.plan.ops).attributes;
      break;
    default:
      if (!image_.sections.empty()) {
        if (op.weights.empty() || below(4) == 0) op.weights.emplace_back();
        any(op.weights) = any(image_.sections).name;
      }
  }
}

// Ops that are swapped, left out, or there twice.
void EngineMutator::change_order() {
  std::vector<PlanOp>& ops = image_.plan.ops;
  if (ops.empty()) return;
  const size_t i = below(ops.size());
  switch (below(3)) {
    case 0:
      std::swap(ops[i], any(ops));
      break;
    case 1:
      ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    default:
      const PlanOp copy = ops[i];
      ops.insert(ops.begin() + static_cast<std::ptrdiff_t>(below(ops.size() + 1)), copy);
  }
}

void EngineMutator::change_section() {
  if (image_.sections.empty()) return;
  SectionBytes& section = any(image_.sections);
  const size_t size = section.bytes.size();
  switch (below(6)) {
    case 0:
      section.tag = any(tags());
      break;
    case 1:
      section.bytes.resize(std::min(kMaxSectionBytes, size + any(kIntegers) % 128));
      break;
    case 2:
      section.bytes.resize(size / 2);
      break;
    case 3:
      section.bytes.resize(std::min(kMaxSectionBytes, size * 2));
      break;
    case 4:
      section.bytes = any(image_.sections).bytes;
      break;
    default:
      section.bytes.resize(size - std::min<size_t>(size, 4));
  }
}

// Values that computing has trouble with, among them all floats.
void EngineMutator::change_bytes(std::vector<uint8_t>& bytes) {
  if (bytes.size() < 4) return;
  if (below(2) == 0) {
    const size_t size = bytes.size();
    LLVMFuzzerMutate(bytes.data(), size, size);
    return;
  }
  const auto value = static_cast<float>(real());
  const size_t words = bytes.size() / 4, from = below(words), count = below(2) == 0 ? 1 : words - from;
  for (size_t i = from; i < from + count; ++i) std::memcpy(bytes.data() + 4 * i, &value, 4);
}

// One size of the model becomes another: in attributes and buffers that have it, and in sections that may depend on it.
void EngineMutator::change_size() {
  if (image_.plan.buffers.empty()) return;
  const int32_t old = any(image_.plan.buffers).columns;
  const auto now = static_cast<int32_t>(kIntegers[below(27)]);
  const auto replace = [&](Attributes& attributes) {
    for (auto& [key, value] : attributes.values) {
      if (const auto* integer = std::get_if<int64_t>(&value); integer != nullptr && *integer == old)
        value = int64_t{now};
    }
  };
  replace(image_.plan.attributes);
  for (PlanOp& op : image_.plan.ops) replace(op.attributes);
  for (PlanBuffer& buffer : image_.plan.buffers) buffer.columns = buffer.columns == old ? now : buffer.columns;
  for (SectionBytes& section : image_.sections) {
    const size_t size = section.bytes.size(),
                 wanted = size / static_cast<size_t>(std::max(1, old)) * static_cast<size_t>(now);
    if (old > 0 && size % static_cast<size_t>(old) == 0 && wanted <= kMaxSectionBytes && below(4) != 0) {
      section.bytes.resize(wanted, 0x3c);
    }
  }
}

}  // namespace precast
