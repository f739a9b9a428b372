#include "runtime/core/cpu_experts.h"

#include <cstring>

namespace precast {

namespace {

// As for a single linear: a block of weights stays in the L2 cache for all tiles of its expert (cpu_linear.cpp).
constexpr int64_t kBlockBytes = 128 << 10;
constexpr int64_t kMinPanels = 4, kMinFloatPanels = 8;

}  // namespace

ExpertLinear::ExpertLinear(const CpuOpMaker& maker, const Shape& shape, size_t& weight) : shape_(shape) {
  CpuOpMaker::expect(weight < maker.op.weights.size(), "it lacks a weight");
  const Section& section = maker.section(weight++);
  kind_ = weight_kind(maker, section);
  const int64_t n = (shape.gated ? 2 : 1) * round_up(shape.n, kPanel);
  const int64_t k = padded_k(kind_, shape.k, shape.group);
  const float* scale = nullptr;
  if (quantized()) {
    CpuOpMaker::expect(weight < maker.op.weights.size(), "it lacks a scale");
    scale = maker.vector(weight++, shape.experts * n);
  }
  // Checked as one tall weight: the experts' lie one after the other.
  first_ = packed_weights(maker, section, shape.experts * n, k, shape.group, scale);
  first_.n = static_cast<int32_t>(n);
  expert_bytes_ = static_cast<int64_t>(section.length) / shape.experts;
  most_rows_ = quantized() ? maker.context.kernels.tile_rows_i8 : maker.context.kernels.tile_rows_float;
  const int64_t least = quantized() ? kMinPanels : kMinFloatPanels;
  panels_at_once_ = std::max(least, kBlockBytes / (expert_bytes_ / (n / kPanel)) / 2 * 2);
  tiles_.quantized = true;
  tiles_.group = shape.group;
  tiles_.k = static_cast<int32_t>(k);
  tiles_.tile_bytes = quantized_tile_bytes(k, shape.group, most_rows_);
}

int64_t ExpertLinear::most_tiles(int64_t entries) const {
  return divide_up(entries, most_rows_) + std::min(shape_.experts, entries);
}

int64_t ExpertLinear::work_bytes(int64_t entries, int64_t ld) const {
  return quantized() ? most_tiles(entries) * tiles_.tile_bytes : entries * ld * 4;
}

void ExpertLinear::plan(const int32_t* begin) {
  plan_tiles_.clear();
  items_.clear();
  first_tile_.assign(1, 0);
  const int64_t pairs = divide_up(first_.n / kPanel, 2), blocks = divide_up(first_.n / kPanel, panels_at_once_);
  for (int32_t e = 0; e < shape_.experts; ++e) {
    const int64_t entries = begin[e + 1] - begin[e], tile_rows = even_tile_rows(entries, most_rows_);
    for (int64_t i = 0; i < entries; i += tile_rows) {
      plan_tiles_.push_back({e, begin[e] + i, static_cast<int>(std::min(tile_rows, entries - i))});
    }
    first_tile_.push_back(plan_tiles_.size());
    for (int64_t block = 0; entries > 0 && block < blocks; ++block) {
      const auto from = static_cast<int>(pairs * block / blocks * 2),
                 to = static_cast<int>(pairs * (block + 1) / blocks * 2);
      items_.push_back({e, from, std::min(to, first_.n / kPanel)});
    }
  }
}

void ExpertLinear::load_tiles(CpuContext& context, const ExpertRows& in, std::byte* work) {
  if (!quantized() && in.rows == nullptr) return;  // they lie as the kernel wants them
  tiles_.data = work;
  const auto count = static_cast<int64_t>(plan_tiles_.size());
  context.for_rows(count, most_rows_ * in.ld, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i) {
      const Tile& tile = plan_tiles_[static_cast<size_t>(i)];
      const float* x = in.row(tile.entry);
      if (in.rows != nullptr) {
        auto* gathered = quantized() ? reinterpret_cast<float*>(context.scratch_of(thread))
                                     : reinterpret_cast<float*>(work) + tile.entry * in.ld;
        for (int r = 0; r < tile.rows; ++r) {
          std::memcpy(gathered + r * in.ld, in.row(tile.entry + r), static_cast<size_t>(in.ld) * 4);
        }
        x = gathered;
      }
      if (!quantized()) continue;
      context.kernels.quantize_tile(x, in.ld, tile.rows, static_cast<int>(shape_.k), first_.k, first_.group,
                                    context.tile(tiles_, i));
    }
  });
}

void ExpertLinear::multiply(const CpuContext& context, const Item& item, size_t first, size_t count,
                            const ExpertRows& in, std::byte* work, float* y) const {
  const Tile& tile = plan_tiles_[first];
  LinearWeights w = first_;
  w.w = static_cast<const std::byte*>(first_.w) + item.expert * expert_bytes_;
  if (w.scale != nullptr) w.scale += int64_t{item.expert} * w.n;
  const LinearOut out{
      y + tile.entry * out_ld(), out_ld(), nullptr, nullptr, shape_.gated ? Epilogue::gated : Epilogue::none,
      shape_.activation};
  if (quantized()) {
    QuantizedTile x[kCallTilesI8];
    for (size_t t = 0; t < count; ++t) x[t] = context.tile(tiles_, static_cast<int64_t>(first + t));
    const int64_t rows = plan_tiles_[first + count - 1].entry + plan_tiles_[first + count - 1].rows - tile.entry;
    context.kernels.linear_i8(w, x, static_cast<int>(rows), tile.rows, item.panel_begin, item.panel_end, out);
    return;
  }
  const float* x = in.rows == nullptr ? in.row(tile.entry) : reinterpret_cast<const float*>(work) + tile.entry * in.ld;
  const auto linear = kind_ == WeightKind::bf16 ? context.kernels.linear_bf16 : context.kernels.linear_f32;
  linear(w, x, in.ld, tile.rows, item.panel_begin, item.panel_end, out);
}

void ExpertLinear::run(CpuContext& context, const ExpertRows& in, std::byte* work, float* y) {
  plan(in.begin);
  load_tiles(context, in, work);
  context.pool.parallel_for(static_cast<int>(items_.size()), [&](int i, int) {
    const Item& item = items_[static_cast<size_t>(i)];
    const auto expert = static_cast<size_t>(item.expert);
    const size_t end = first_tile_[expert + 1], most = quantized() ? kCallTilesI8 : 1;
    for (size_t t = first_tile_[expert]; t < end; t += most) {
      multiply(context, item, t, std::min(most, end - t), in, work, y);
    }
  });
}

}  // namespace precast
