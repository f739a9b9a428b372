#include "runtime/core/plan.h"

#include <cmath>

#include "runtime/core/byte_reader.h"
#include "runtime/core/core.h"

namespace precast {

namespace {

// Sizes are products of columns and rows, computed in 64 bits: this leaves room for 2^20 rows and as many buffers.
constexpr uint32_t kMaxColumns = 1u << 26;

Attributes read_attributes(ByteReader& reader) {
  Attributes attributes;
  for (uint32_t n = reader.count(2 + 1 + 2); n > 0; --n) {
    std::string key = reader.text();
    const auto type = reader.number<uint8_t>();
    Attribute value;
    if (type == 0) {
      value = reader.number<int64_t>();
    } else if (type == 1) {
      value = reader.number<double>();
    } else if (type == 2) {
      value = reader.text();
    } else {
      reader.fail("attribute " + key + " has the unknown type " + std::to_string(type));
    }
    if (!attributes.values.emplace(key, std::move(value)).second) reader.fail("attribute " + key + " stands twice");
  }
  return attributes;
}

PlanBuffer read_buffer(ByteReader& reader, uint32_t num_buffers) {
  PlanBuffer buffer;
  buffer.name = reader.text();
  const auto dtype = reader.number<uint8_t>(), rows = reader.number<uint8_t>();
  const auto columns = reader.number<uint32_t>();
  const auto group = reader.number<int32_t>();
  const auto slot = reader.number<uint32_t>();
  const bool ok = dtype <= 1 && rows <= 1 && columns >= 1 && columns <= kMaxColumns && slot < num_buffers &&
                  group >= 0 && group <= static_cast<int32_t>(kMaxColumns) && (dtype == 1 || group == 0);
  if (!ok) reader.fail("buffer " + buffer.name + " is of an unknown kind");
  buffer.quantized = dtype == 1;
  buffer.sampled_rows = rows == 1;
  buffer.columns = static_cast<int32_t>(columns);
  buffer.group = group;
  buffer.slot = static_cast<int32_t>(slot);
  return buffer;
}

std::vector<int32_t> read_operands(ByteReader& reader, size_t num_buffers) {
  std::vector<int32_t> operands(reader.count(4));
  for (int32_t& operand : operands) {
    const auto index = reader.number<uint32_t>();
    if (index >= num_buffers) reader.fail("an op names buffer " + std::to_string(index));
    operand = static_cast<int32_t>(index);
  }
  return operands;
}

PlanOp read_op(ByteReader& reader, size_t num_buffers) {
  PlanOp op;
  op.kernel = reader.text();
  op.inputs = read_operands(reader, num_buffers);
  op.outputs = read_operands(reader, num_buffers);
  for (uint32_t n = reader.count(2); n > 0; --n) op.weights.push_back(reader.text());
  op.attributes = read_attributes(reader);
  return op;
}

}  // namespace

const Attribute& Attributes::at(const std::string& key) const {
  const auto found = values.find(key);
  if (found == values.end())
    throw EngineError("attribute " + key + " is missing, as in engines of other versions; build it again");
  return found->second;
}

int64_t Attributes::integer(const std::string& key, int64_t low, int64_t high) const {
  const auto* value = std::get_if<int64_t>(&at(key));
  if (value == nullptr) throw EngineError("attribute " + key + " is not an integer");
  if (*value < low || *value > high) {
    throw EngineError("attribute " + key + " is " + std::to_string(*value) + ", outside " + std::to_string(low) +
                      " … " + std::to_string(high));
  }
  return *value;
}

double Attributes::real(const std::string& key) const {
  const Attribute& attribute = at(key);
  double value = NAN;
  if (const auto* real = std::get_if<double>(&attribute)) value = *real;
  if (const auto* integer = std::get_if<int64_t>(&attribute)) value = static_cast<double>(*integer);
  if (!std::isfinite(value)) throw EngineError("attribute " + key + " is not a finite number");
  return value;
}

const std::string& Attributes::text(const std::string& key) const {
  const auto* value = std::get_if<std::string>(&at(key));
  if (value == nullptr) throw EngineError("attribute " + key + " is not a text");
  return *value;
}

Plan read_plan(std::span<const uint8_t> bytes) {
  ByteReader reader(bytes, "the plan");
  Plan plan;
  plan.attributes = read_attributes(reader);
  const uint32_t num_buffers = reader.count(2 + 1 + 1 + 4 + 4 + 4);
  for (uint32_t i = 0; i < num_buffers; ++i) plan.buffers.push_back(read_buffer(reader, num_buffers));
  for (uint32_t n = reader.count(2 + 4 + 4 + 4 + 4); n > 0; --n) plan.ops.push_back(read_op(reader, num_buffers));
  if (reader.left() != 0) reader.fail("bytes are left over");
  return plan;
}

}  // namespace precast
