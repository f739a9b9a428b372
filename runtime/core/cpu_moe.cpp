// moe: a router gives each row to a few of many gated feed-forward layers, and their results are added.
#include <limits>
#include <optional>

#include "runtime/core/cpu_experts.h"

namespace precast {

namespace {

// Expert feed-forward layers of one size.
struct Experts {
  ExpertLinear gate_up, proj;

  Experts(const CpuOpMaker& maker, const ExpertLinear::Shape& gate_up, size_t& weight)
      : gate_up(maker, gate_up, weight),
        proj(maker, {gate_up.experts, gate_up.k, gate_up.n, gate_up.group, false, gate_up.activation}, weight) {}
};

class Moe final : public CpuOp {
 public:
  explicit Moe(const CpuOpMaker& maker)
      : context_(maker.context), in_(maker.input(0)), out_(maker.f32_output(in_.columns, false)) {
    maker.f32_input(0, in_.columns, false);
    const Attributes& a = maker.op.attributes;
    num_experts_ = a.integer("num_experts", 1, 1 << 12);
    top_k_ = static_cast<int32_t>(a.integer("top_k", 1, num_experts_));
    normalize_ = a.integer("norm_topk_prob", 0, 1) == 1;
    CpuOpMaker::expect(context_.model.limits.max_num_tokens <= std::numeric_limits<int32_t>::max() / top_k_,
                       "max_num_tokens times top_k is beyond what it can count");
    const auto group = static_cast<int32_t>(a.integer("activation_group_size", 0, 1 << 26));
    CpuOpMaker::expect(group % 4 == 0, "attribute activation_group_size is no multiple of 4");
    const int64_t size = a.integer("intermediate_size", 1, 1 << 26);
    const int64_t shared_size = a.integer("shared_intermediate_size", 0, 1 << 26);
    const bool shared_gate = a.integer("shared_gate", 0, 1) == 1;
    CpuOpMaker::expect(!shared_gate || shared_size > 0, "it has a gate and no shared expert");
    const Activation activation = maker.activation();

    size_t weight = 0;
    router_ = f32_linear(maker, weight, num_experts_);
    experts_.emplace(maker, ExpertLinear::Shape{num_experts_, size, in_.columns, group, true, activation}, weight);
    if (shared_size > 0) {
      shared_.emplace(maker, ExpertLinear::Shape{1, shared_size, in_.columns, group, true, activation}, weight);
    }
    if (shared_gate) gate_ = f32_linear(maker, weight, 1);
    maker.expect_counts(1, weight);
    lay_out();
  }

  int64_t scratch_bytes() const override {
    int64_t bytes = std::max(experts_->gate_up.scratch_bytes(in_.ld), 8 * int64_t{top_k_ + 1});
    if (shared_) bytes = std::max(bytes, shared_->gate_up.scratch_bytes(in_.ld));
    return bytes;
  }
  int64_t workspace_bytes() const override { return bytes_; }

  void run(const CpuStep& step) override {
    const int64_t rows = step.rows(out_);
    multiply_f32(*router_, rows, at<float>(logits_));
    route(rows);
    sort_by_expert(rows);
    const auto feed_forward = [&](Experts& experts, const ExpertRows& in, float* y) {
      auto* hidden = at<float>(hidden_);
      experts.gate_up.run(context_, in, at<std::byte>(work_), hidden);
      experts.proj.run(context_, {hidden, experts.gate_up.out_ld(), nullptr, in.begin}, at<std::byte>(work_), y);
    };
    feed_forward(*experts_, {in_.row(0), in_.ld, at<int32_t>(rows_), begin_.data()}, at<float>(results_));
    if (shared_) {
      const int32_t all[] = {0, static_cast<int32_t>(rows)};
      feed_forward(*shared_, {in_.row(0), in_.ld, nullptr, all}, at<float>(shared_results_));
    }
    if (gate_) multiply_f32(*gate_, rows, at<float>(gates_));
    add_up(rows);
  }

 private:
  // A linear in f32, whatever the rest is: routing must not depend on how the experts are stored.
  std::optional<LinearWeights> f32_linear(const CpuOpMaker& maker, size_t& weight, int64_t n) const {
    CpuOpMaker::expect(weight < maker.op.weights.size(), "it lacks a weight");
    const Section& section = maker.section(weight++);
    CpuOpMaker::expect(section.tag == "panel16.f32", "section " + section.name + " is not of layout panel16.f32");
    return packed_weights(maker, section, round_up(n, kPanel), in_.columns, 0, nullptr);
  }

  // Where everything lies in the workspace, for as many rows as a step may have.
  void lay_out() {
    const int64_t rows = context_.model.limits.max_num_tokens, entries = rows * top_k_;
    const auto place = [this](int64_t bytes) {
      const int64_t begin = bytes_;
      bytes_ += round_up(bytes, 64);
      return begin;
    };
    logits_ = place(4 * rows * router_->n);
    ids_ = place(4 * entries);
    weights_ = place(4 * entries);
    places_ = place(4 * entries);
    rows_ = place(4 * entries);
    hidden_ = place(4 * std::max(entries * experts_->gate_up.out_ld(), shared_ ? rows * shared_->gate_up.out_ld() : 0));
    work_ = place(std::max(work_bytes(*experts_, entries), shared_ ? work_bytes(*shared_, rows) : 0));
    results_ = place(4 * entries * experts_->proj.out_ld());
    shared_results_ = place(shared_ ? 4 * rows * shared_->proj.out_ld() : 0);
    gates_ = place(gate_ ? 4 * rows * gate_->n : 0);
    begin_.resize(static_cast<size_t>(num_experts_) + 1);
  }

  int64_t work_bytes(const Experts& experts, int64_t entries) const {
    return std::max(experts.gate_up.work_bytes(entries, in_.ld),
                    experts.proj.work_bytes(entries, experts.gate_up.out_ld()));
  }

  template <typename T>
  T* at(int64_t place) const {
    return reinterpret_cast<T*>(context_.workspace.data() + place);
  }

  // y [rows][w.n]. Few rows share the panels among the threads, many share the rows.
  void multiply_f32(const LinearWeights& w, int64_t rows, float* y) const {
    const int64_t tile_rows = even_tile_rows(rows, context_.kernels.tile_rows_float), panels = w.n / kPanel;
    const int64_t tiles = divide_up(rows, tile_rows);
    const int64_t blocks = tiles >= context_.pool.num_threads() ? 1 : divide_up(panels, 2);
    context_.pool.parallel_for(static_cast<int>(tiles * blocks), [&](int item, int) {
      const int64_t row = item / blocks * tile_rows, block = item % blocks;
      const auto from = static_cast<int>(panels * block / blocks), to = static_cast<int>(panels * (block + 1) / blocks);
      const LinearOut out{y + row * w.n, w.n, nullptr, nullptr, Epilogue::none, Activation::silu};
      context_.kernels.linear_f32(w, in_.row(row), in_.ld, static_cast<int>(std::min(tile_rows, rows - row)), from, to,
                                  out);
    });
  }

  void route(int64_t rows) const {
    context_.for_rows(rows, num_experts_ * top_k_, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        context_.kernels.moe_route(at<float>(logits_) + r * router_->n, static_cast<int>(num_experts_), top_k_,
                                   normalize_, at<int32_t>(ids_) + r * top_k_, at<float>(weights_) + r * top_k_);
      }
    });
  }

  // Counting sort of (row, choice) by expert; rows rise inside an expert.
  void sort_by_expert(int64_t rows) {
    const auto* ids = at<int32_t>(ids_);
    const int64_t entries = rows * top_k_;
    std::fill(begin_.begin(), begin_.end(), 0);
    for (int64_t i = 0; i < entries; ++i) ++begin_[static_cast<size_t>(ids[i]) + 1];
    for (size_t e = 0; e < static_cast<size_t>(num_experts_); ++e) begin_[e + 1] += begin_[e];
    next_.assign(begin_.begin(), begin_.end() - 1);
    for (int64_t i = 0; i < entries; ++i) {
      const int32_t entry = next_[static_cast<size_t>(ids[i])]++;
      at<int32_t>(places_)[i] = entry;
      at<int32_t>(rows_)[entry] = static_cast<int32_t>(i / top_k_);
    }
  }

  // y = Σ weight · result over the row's experts in rising id, and the shared expert last.
  void add_up(int64_t rows) const {
    const int64_t ld = experts_->proj.out_ld();
    context_.for_rows(rows, in_.ld * top_k_, 1, [&](int64_t begin, int64_t end, int thread) {
      auto** results = reinterpret_cast<const float**>(context_.scratch_of(thread));
      for (int64_t r = begin; r < end; ++r) {
        float* weights = at<float>(weights_) + r * top_k_;
        for (int i = 0; i < top_k_; ++i) results[i] = at<float>(results_) + at<int32_t>(places_)[r * top_k_ + i] * ld;
        context_.kernels.weighted_sum(results, weights, top_k_, in_.columns, out_.row(r));
        if (shared_) add_shared(r);
        out_.clear_padding(r);
      }
    });
  }

  void add_shared(int64_t r) const {
    float weights[2] = {1, 1};
    if (gate_) context_.kernels.sigmoid(at<float>(gates_) + r * gate_->n, 1, weights + 1);
    const float* parts[2] = {out_.row(r), at<float>(shared_results_) + r * shared_->proj.out_ld()};
    context_.kernels.weighted_sum(parts, weights, 2, in_.columns, out_.row(r));
  }

  CpuContext& context_;
  const CpuValue &in_, &out_;
  int64_t num_experts_;
  int32_t top_k_;
  bool normalize_;
  std::optional<LinearWeights> router_, gate_;  // the gate of the shared expert
  std::optional<Experts> experts_, shared_;

  // Places in the workspace. Entries are (row, choice) sorted by expert.
  int64_t bytes_ = 0;
  int64_t logits_, gates_;                     // [rows][n of the linear]
  int64_t ids_, weights_, places_;             // [rows][top_k]: expert, its weight, its entry
  int64_t rows_;                               // [entries] the row of each
  int64_t hidden_, results_, shared_results_;  // [entries][ld], [rows][ld]
  int64_t work_;                               // of an ExpertLinear
  std::vector<int32_t> begin_, next_;          // by expert
};

}  // namespace

std::unique_ptr<CpuOp> make_moe(const CpuOpMaker& maker) {
  maker.expect_counts(1, maker.op.weights.size());
  return std::make_unique<Moe>(maker);
}

}  // namespace precast
