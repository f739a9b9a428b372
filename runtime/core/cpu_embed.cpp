// embed and gather_rows: ops that pick rows.
#include <cstring>
#include <optional>

#include "runtime/core/cpu_op_maker.h"

namespace precast {

namespace {

// Rows picked by an item: they are short, and few of them share a cache line.
constexpr int64_t kUnitRows = 8;

// A matrix [rows, columns] of f32 or bf16, row-major.
struct RowTable {
  const uint8_t* data;
  int64_t rows, columns;
  bool bf16;

  static bool is_one(const Section& section) { return section.tag == "rows.f32" || section.tag == "rows.bf16"; }

  static RowTable of(const CpuOpMaker& maker, const Section& section, int64_t columns) {
    const bool bf16 = section.tag == "rows.bf16";
    const auto row_bytes = static_cast<uint64_t>(columns * (bf16 ? 2 : 4));
    CpuOpMaker::expect(is_one(section) && section.length % row_bytes == 0,
                       "section " + section.name + " is no table of rows of " + std::to_string(columns));
    return {maker.context.file->bytes(section).data(), static_cast<int64_t>(section.length / row_bytes), columns, bf16};
  }

  void read(int64_t row, float* y) const {
    if (!bf16) {
      std::memcpy(y, data + row * columns * 4, static_cast<size_t>(columns) * 4);
      return;
    }
    const auto* from = reinterpret_cast<const bf16_t*>(data) + row * columns;
    for (int64_t i = 0; i < columns; ++i) {
      const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
      std::memcpy(y + i, &bits, 4);
    }
  }
};

// A table of rows, or the packed head of a model whose head is tied; times a constant; plus learned positions.
class Embed final : public CpuOp {
 public:
  explicit Embed(const CpuOpMaker& maker)
      : context_(maker.context),
        out_(maker.f32_output(maker.output().columns, false)),
        scale_(maker.f32_attribute("scale")) {
    const bool learned_positions = maker.op.attributes.integer("learned_positions", 0, 1) == 1;
    CpuOpMaker::expect(!maker.op.weights.empty(), "it has no table");
    const Section& section = maker.section(0);
    size_t weights = 1;
    if (RowTable::is_one(section)) {
      table_ = RowTable::of(maker, section, out_.columns);
      const int64_t vocab = context_.model.limits.vocab_size;
      CpuOpMaker::expect(table_->rows == vocab, "section " + section.name + " is not [" + std::to_string(vocab) + ", " +
                                                    std::to_string(out_.columns) + "]");
    } else {
      weights = make_packed(maker, section);
    }
    maker.expect_counts(0, weights + (learned_positions ? 1 : 0));
    if (!learned_positions) return;
    positions_ = RowTable::of(maker, maker.section(weights), out_.columns);
    CpuOpMaker::expect(positions_->rows >= context_.model.limits.max_seq_len,
                       "section " + maker.section(weights).name + " has fewer positions than max_seq_len");
  }

  // A row of the packed head, whose K is padded, or of the positions.
  int64_t scratch_bytes() const override { return 4 * std::max<int64_t>(packed_.k, out_.columns); }

  void run(const CpuStep& step) override {
    context_.for_rows(step.rows(out_), out_.columns, kUnitRows, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t r = begin; r < end; ++r) {
        run_row(step, r, reinterpret_cast<float*>(context_.scratch_of(thread)));
      }
    });
  }

 private:
  // Returns the number of its sections.
  size_t make_packed(const CpuOpMaker& maker, const Section& table) {
    const WeightKind kind = weight_kind(maker, table);
    const size_t weights = kind == WeightKind::i8 ? 2 : 1;
    CpuOpMaker::expect(maker.op.weights.size() >= weights, "it has no scale");
    const int64_t n = round_up(context_.model.limits.vocab_size, kPanel);
    const float* scale = kind == WeightKind::i8 ? maker.vector(1, n) : nullptr;
    // How far K is padded depends on the head's activation groups; the section's length tells.
    const int64_t bytes = kind == WeightKind::i8 ? 1 : kind == WeightKind::bf16 ? 2 : 4;
    const int64_t k = static_cast<int64_t>(table.length) / (n * bytes);
    CpuOpMaker::expect(k >= out_.columns && k < int64_t{1} << 28 && k == padded_k(kind, k, 0),
                       "section " + table.name + " is too short for the output, or no whole number of rows");
    packed_ = packed_weights(maker, table, n, k, 0, scale);
    gather_ = kind == WeightKind::i8     ? context_.kernels.gather_i8
              : kind == WeightKind::bf16 ? context_.kernels.gather_bf16
                                         : context_.kernels.gather_f32;
    return weights;
  }

  void run_row(const CpuStep& step, int64_t r, float* scratch) const {
    const TokenId token = step.batch.tokens[static_cast<size_t>(r)];
    float* y = out_.row(r);
    if (table_) {
      table_->read(token, y);
    } else {
      gather_(packed_, token, scratch);
      std::memcpy(y, scratch, static_cast<size_t>(out_.columns) * 4);
    }
    if (scale_ != 1.0f) context_.kernels.scale(y, scale_, out_.columns, y);
    if (positions_) {
      positions_->read(step.positions[r], scratch);
      context_.kernels.add(y, scratch, out_.columns, y);
    }
    out_.clear_padding(r);
  }

  CpuContext& context_;
  const CpuValue& out_;
  float scale_;
  std::optional<RowTable> table_;  // else the packed head
  LinearWeights packed_{};
  void (*gather_)(const LinearWeights&, int, float*) = nullptr;
  std::optional<RowTable> positions_;
};

class GatherRows final : public CpuOp {
 public:
  explicit GatherRows(const CpuOpMaker& maker)
      : context_(maker.context), in_(maker.input(0)), out_(maker.f32_output(in_.columns, true)) {
    maker.f32_input(0, in_.columns, false);
  }

  void run(const CpuStep& step) override {
    context_.for_rows(step.rows(out_), out_.columns, kUnitRows, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        std::memcpy(out_.row(r), in_.row(step.batch.logit_rows[static_cast<size_t>(r)]),
                    static_cast<size_t>(in_.ld) * 4);
      }
    });
  }

 private:
  CpuContext& context_;
  const CpuValue &in_, &out_;
};

}  // namespace

std::unique_ptr<CpuOp> make_embed(const CpuOpMaker& maker) {
  maker.expect_counts(0, maker.op.weights.size());
  return std::make_unique<Embed>(maker);
}

std::unique_ptr<CpuOp> make_gather_rows(const CpuOpMaker& maker) {
  maker.expect_counts(1, 0);
  return std::make_unique<GatherRows>(maker);
}

}  // namespace precast
