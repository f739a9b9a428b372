// embed and gather_rows: ops that pick rows.
#include <cstring>

#include "runtime/core/cpu_op_maker.h"

namespace precast {

namespace {

// Rows picked by an item: they are short, and few of them share a cache line.
constexpr int64_t kUnitRows = 8;

// A table of rows, f32 or bf16, or the packed head of a model whose head is tied.
class Embed final : public CpuOp {
 public:
  explicit Embed(const CpuOpMaker& maker)
      : context_(maker.context), out_(maker.f32_output(maker.output().columns, false)) {
    CpuOpMaker::expect(!maker.op.weights.empty(), "it has no table");
    const Section& table = maker.section(0);
    const auto vocab = static_cast<uint64_t>(context_.model.limits.vocab_size);
    const auto columns = static_cast<uint64_t>(out_.columns);
    if (table.tag == "rows.f32" || table.tag == "rows.bf16") {
      maker.expect_counts(0, 1);
      bytes_ = table.tag == "rows.f32" ? 4 : 2;
      CpuOpMaker::expect(
          table.length == vocab * columns * static_cast<uint64_t>(bytes_),
          "section " + table.name + " is not [" + std::to_string(vocab) + ", " + std::to_string(columns) + "]");
      rows_ = context_.file->bytes(table).data();
      return;
    }
    make_packed(maker, table);
  }

  int64_t scratch_bytes() const override { return packed_.k * int64_t{4}; }

  void run(const CpuStep& step) override {
    context_.for_rows(step.rows(out_), out_.columns, kUnitRows, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t r = begin; r < end; ++r) {
        gather(step.batch.tokens[static_cast<size_t>(r)], out_.row(r), thread);
        out_.clear_padding(r);
      }
    });
  }

 private:
  void make_packed(const CpuOpMaker& maker, const Section& table) {
    const WeightKind kind = weight_kind(maker, table);
    maker.expect_counts(0, kind == WeightKind::i8 ? 2 : 1);
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
  }

  void gather(TokenId token, float* y, int thread) const {
    const auto columns = static_cast<size_t>(out_.columns);
    if (gather_ != nullptr) {
      auto* row = reinterpret_cast<float*>(context_.scratch_of(thread));  // has room for the padded K, y may not
      gather_(packed_, token, row);
      std::memcpy(y, row, columns * 4);
    } else if (bytes_ == 4) {
      std::memcpy(y, rows_ + static_cast<size_t>(token) * columns * 4, columns * 4);
    } else {
      const auto* row = reinterpret_cast<const bf16_t*>(rows_) + static_cast<size_t>(token) * columns;
      for (size_t i = 0; i < columns; ++i) {
        const uint32_t bits = static_cast<uint32_t>(row[i]) << 16;
        std::memcpy(y + i, &bits, 4);
      }
    }
  }

  CpuContext& context_;
  const CpuValue& out_;
  const uint8_t* rows_ = nullptr;
  int bytes_ = 0;
  LinearWeights packed_{};
  void (*gather_)(const LinearWeights&, int, float*) = nullptr;
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
