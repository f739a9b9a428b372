// rope_kv_append: bounds, normalizes and rotates q and k of each row, and writes k and v to their pages.
#include <cstring>

#include "runtime/core/cpu_op_maker.h"

namespace precast {

namespace {

// Rows that stay together. More would spare neighbouring tokens of a prompt the sharing of cache lines at the borders,
// but would leave a batch of decoding sequences to one thread.
constexpr int64_t kUnitRows = 4;

// What q and k go through before they are rotated.
enum class QkNorm {
  none,
  rms_head,    // RMS norm of each head; one gain for all heads
  rms_full,    // RMS norm of all heads together
  layer_head,  // layer norm of each head with a gain of its own
};

QkNorm qk_norm_named(const std::string& name) {
  if (name == "none") return QkNorm::none;
  if (name == "rms_head") return QkNorm::rms_head;
  if (name == "rms_full") return QkNorm::rms_full;
  CpuOpMaker::expect(name == "layer_head", "it has the unknown qk_norm " + name);
  return QkNorm::layer_head;
}

class RopeKvAppend final : public CpuOp {
 public:
  explicit RopeKvAppend(const CpuOpMaker& maker)
      : context_(maker.context),
        in_(maker.f32_input(0, columns(context_.model, 2), false)),
        out_(maker.f32_output(columns(context_.model, 0), false)),
        layer_(context_.kv_layers[static_cast<size_t>(maker.layer())]),
        clip_(maker.f32_attribute("clip")),
        norm_(qk_norm_named(maker.op.attributes.text("qk_norm"))) {
    const Attributes& attributes = maker.op.attributes;
    const CpuModel& model = context_.model;
    rotary_dim_ = static_cast<int32_t>(attributes.integer("rotary_dim", 0, model.head_size));
    CpuOpMaker::expect(rotary_dim_ % 2 == 0, "attribute rotary_dim is odd");
    CpuOpMaker::expect(clip_ >= 0, "attribute clip is negative");
    const size_t rope_weights = rotary_dim_ > 0 ? 1 : 0;
    maker.expect_counts(1, rope_weights + (norm_ == QkNorm::none ? 0 : 2));
    if (rotary_dim_ > 0) table_ = rope_table(maker);
    if (norm_ == QkNorm::none) return;
    epsilon_ = maker.f32_attribute("epsilon");
    CpuOpMaker::expect(epsilon_ >= 0, "attribute epsilon is negative");
    const auto gain = [&](size_t i, int64_t heads) {
      return maker.vector(rope_weights + i, (norm_ == QkNorm::rms_head ? 1 : heads) * model.head_size);
    };
    q_gain_ = gain(0, model.num_heads);
    k_gain_ = gain(1, model.num_kv_heads);
  }

  // k and v of a row.
  int64_t scratch_bytes() const override { return int64_t{8} * context_.model.num_kv_heads * context_.model.head_size; }

  void run(const CpuStep& step) override {
    context_.for_rows(step.rows(out_), in_.columns, kUnitRows, [&](int64_t begin, int64_t end, int thread) {
      auto* kv = reinterpret_cast<float*>(context_.scratch_of(thread));
      for (int64_t r = begin; r < end; ++r) run_row(step, r, kv);
    });
  }

 private:
  static int64_t columns(const CpuModel& model, int64_t kv) {
    return (model.num_heads + kv * model.num_kv_heads) * int64_t{model.head_size};
  }

  // Ops with the same frequencies share a table: it is computed once per step.
  size_t rope_table(const CpuOpMaker& maker) const {
    const double factor = maker.op.attributes.real("attention_factor");
    const float* frequencies = maker.vector(0, rotary_dim_ / 2);
    std::vector<RopeTable>& tables = maker.context.rope_tables;
    for (size_t i = 0; i < tables.size(); ++i) {
      if (tables[i].inverse_frequencies == frequencies && tables[i].attention_factor == factor) return i;
    }
    tables.push_back({frequencies, factor, rotary_dim_, nullptr, nullptr});
    return tables.size() - 1;
  }

  void run_row(const CpuStep& step, int64_t r, float* kv) const {
    const CpuModel& model = context_.model;
    const int64_t q_columns = columns(model, 0), kv_columns = columns(model, 1) - q_columns;
    const float* qkv = in_.row(r);
    float *q = out_.row(r), *k = kv, *v = kv + kv_columns;
    std::memcpy(q, qkv, static_cast<size_t>(q_columns) * 4);
    std::memcpy(k, qkv + q_columns, static_cast<size_t>(2 * kv_columns) * 4);
    if (clip_ > 0) {
      context_.kernels.clip(q, clip_, static_cast<int>(q_columns), q);
      context_.kernels.clip(k, clip_, static_cast<int>(2 * kv_columns), k);
    }
    normalize(q, model.num_heads, q_gain_);
    normalize(k, model.num_kv_heads, k_gain_);
    rotate(r, q, model.num_heads);
    rotate(r, k, model.num_kv_heads);
    out_.clear_padding(r);
    const int32_t position = step.positions[r];
    const std::vector<PageId>& tables = step.batch.block_tables[layer_.group];
    const PageId page = tables[static_cast<size_t>(step.row_tables[r] + position / kPageTokens)];
    for (int head = 0; head < model.num_kv_heads; ++head) {
      const int64_t begin = int64_t{head} * model.head_size;
      context_.kernels.kv_append(k + begin, v + begin, model.head_size, model.kv_dtype,
                                 context_.pools[layer_.group].block(page, layer_.index, head), position % kPageTokens);
    }
  }

  void normalize(float* x, int heads, const float* gain) const {
    const int head_size = context_.model.head_size;
    if (norm_ == QkNorm::none) return;
    if (norm_ == QkNorm::rms_full) return context_.kernels.rms_norm(x, gain, epsilon_, heads * head_size, x);
    for (int head = 0; head < heads; ++head, x += head_size) {
      if (norm_ == QkNorm::rms_head) {
        context_.kernels.rms_norm(x, gain, epsilon_, head_size, x);
      } else {
        context_.kernels.layer_norm(x, gain + int64_t{head} * head_size, nullptr, epsilon_, head_size, x);
      }
    }
  }

  void rotate(int64_t row, float* x, int heads) const {
    if (rotary_dim_ == 0) return;
    const RopeTable& table = context_.rope_tables[table_];
    const int64_t at = table.floats(row);
    context_.kernels.rope(x, heads, context_.model.head_size, rotary_dim_, table.cos + at, table.sin + at);
  }

  CpuContext& context_;
  const CpuValue &in_, &out_;
  KvLayer layer_;
  float clip_;  // 0: none
  QkNorm norm_;
  float epsilon_ = 0;
  const float *q_gain_ = nullptr, *k_gain_ = nullptr;
  int32_t rotary_dim_;
  size_t table_ = 0;
};

}  // namespace

std::unique_ptr<CpuOp> make_rope_kv_append(const CpuOpMaker& maker) {
  maker.expect_counts(1, maker.op.weights.size());
  return std::make_unique<RopeKvAppend>(maker);
}

}  // namespace precast
