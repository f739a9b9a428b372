// rope_kv_append: rotates q and k of each row, and writes k and v to their pages.
#include <cstring>

#include "runtime/core/cpu_op_maker.h"

namespace precast {

namespace {

// Rows that stay together. More would spare neighbouring tokens of a prompt the sharing of cache lines at the borders,
// but would leave a batch of decoding sequences to one thread.
constexpr int64_t kUnitRows = 4;

class RopeKvAppend final : public CpuOp {
 public:
  explicit RopeKvAppend(const CpuOpMaker& maker)
      : context_(maker.context),
        in_(maker.f32_input(0, columns(context_.model, 2), false)),
        out_(maker.f32_output(columns(context_.model, 0), false)),
        layer_(maker.layer()),
        table_(rope_table(maker)) {}

  int64_t scratch_bytes() const override { return int64_t{4} * context_.model.num_kv_heads * context_.model.head_size; }

  void run(const CpuStep& step) override {
    context_.for_rows(step.rows(out_), in_.columns, kUnitRows, [&](int64_t begin, int64_t end, int thread) {
      auto* k = reinterpret_cast<float*>(context_.scratch_of(thread));
      for (int64_t r = begin; r < end; ++r) run_row(step, r, k);
    });
  }

 private:
  static int64_t columns(const CpuModel& model, int64_t kv) {
    return (model.num_heads + kv * model.num_kv_heads) * int64_t{model.head_size};
  }

  // Ops with the same frequencies share a table: it is computed once per step.
  static size_t rope_table(const CpuOpMaker& maker) {
    const double factor = maker.op.attributes.real("attention_factor");
    const float* frequencies = maker.vector(0, maker.context.model.rotary_dim / 2);
    std::vector<RopeTable>& tables = maker.context.rope_tables;
    for (size_t i = 0; i < tables.size(); ++i) {
      if (tables[i].inverse_frequencies == frequencies && tables[i].attention_factor == factor) return i;
    }
    tables.push_back({frequencies, factor, nullptr, nullptr});
    return tables.size() - 1;
  }

  void run_row(const CpuStep& step, int64_t r, float* k) const {
    const CpuModel& model = context_.model;
    const KernelTable& kernels = context_.kernels;
    const RopeTable& table = context_.rope_tables[table_];
    const int64_t at = r * (model.rotary_dim / 2), q_columns = columns(model, 0),
                  kv_columns = columns(model, 1) - q_columns;
    const float* qkv = in_.row(r);
    float* q = out_.row(r);
    std::memcpy(q, qkv, static_cast<size_t>(q_columns) * 4);
    std::memcpy(k, qkv + q_columns, static_cast<size_t>(kv_columns) * 4);
    kernels.rope(q, model.num_heads, model.head_size, model.rotary_dim, table.cos + at, table.sin + at);
    kernels.rope(k, model.num_kv_heads, model.head_size, model.rotary_dim, table.cos + at, table.sin + at);
    out_.clear_padding(r);
    const float* v = qkv + q_columns + kv_columns;
    const int32_t position = step.positions[r];
    const PageId page = step.row_pages[r][position / kPageTokens];
    for (int head = 0; head < model.num_kv_heads; ++head) {
      const int64_t begin = int64_t{head} * model.head_size;
      kernels.kv_append(k + begin, v + begin, model.head_size, model.kv_dtype, context_.pages.block(page, layer_, head),
                        position % kPageTokens);
    }
  }

  CpuContext& context_;
  const CpuValue &in_, &out_;
  int layer_;
  size_t table_;
};

}  // namespace

std::unique_ptr<CpuOp> make_rope_kv_append(const CpuOpMaker& maker) {
  maker.expect_counts(1, 1);
  return std::make_unique<RopeKvAppend>(maker);
}

}  // namespace precast
