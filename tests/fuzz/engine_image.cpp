#include "tests/fuzz/engine_image.h"

#include "runtime/core/core.h"
#include "runtime/core/engine_file.h"

namespace precast {

namespace {

constexpr size_t kGap = 64;

void write(ByteWriter& w, const Attributes& attributes) {
  w.number(static_cast<uint32_t>(attributes.values.size()));
  for (const auto& [key, value] : attributes.values) {
    w.text(key).number(static_cast<uint8_t>(value.index()));
    if (const auto* integer = std::get_if<int64_t>(&value)) w.number(*integer);
    if (const auto* real = std::get_if<double>(&value)) w.number(*real);
    if (const auto* text = std::get_if<std::string>(&value)) w.text(*text);
  }
}

void write(ByteWriter& w, const std::vector<int32_t>& operands) {
  w.number(static_cast<uint32_t>(operands.size()));
  for (const int32_t operand : operands) w.number(operand);
}

std::vector<uint8_t> plan_bytes(const Plan& plan) {
  ByteWriter w;
  write(w, plan.attributes);
  w.number(static_cast<uint32_t>(plan.buffers.size()));
  for (const PlanBuffer& b : plan.buffers) {
    w.text(b.name).number(static_cast<uint8_t>(b.quantized)).number(static_cast<uint8_t>(b.sampled_rows));
    w.number(b.columns).number(b.group).number(b.slot);
  }
  w.number(static_cast<uint32_t>(plan.ops.size()));
  for (const PlanOp& op : plan.ops) {
    w.text(op.kernel);
    write(w, op.inputs);
    write(w, op.outputs);
    w.number(static_cast<uint32_t>(op.weights.size()));
    for (const std::string& name : op.weights) w.text(name);
    write(w, op.attributes);
  }
  return w.bytes;
}

}  // namespace

std::optional<EngineImage> take_apart(std::span<const uint8_t> file) {
  EngineImage image;
  try {
    EngineContent content = read_engine(file);
    image.plan = std::move(content.plan);
    for (const Section& s : content.sections) {
      if (s.length > kChecksumBlock) return std::nullopt;
      const std::span<const uint8_t> bytes = file.subspan(s.offset, s.length);
      if (s.name != "plan") image.sections.push_back({s.name, s.tag, {bytes.begin(), bytes.end()}});
    }
  } catch (const EngineError&) {
    return std::nullopt;
  }
  return image;
}

std::vector<uint8_t> put_together(const EngineImage& image) {
  std::vector<SectionBytes> sections = image.sections;
  sections.insert(sections.begin(), {"plan", "plan.v0", plan_bytes(image.plan)});
  return engine_bytes(sections, kGap);
}

}  // namespace precast
