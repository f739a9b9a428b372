// rms_norm and layer_norm, with or without quantization of their result, and quantize alone. Quantized values lie in
// tiles of rows, and a tile is made by one thread.
#include <optional>

#include "runtime/core/cpu_op_maker.h"

namespace precast {

namespace {

// A norm of one row, with what it needs.
class Norm {
 public:
  Norm(const CpuOpMaker& maker, int32_t columns)
      : kernels_(maker.context.kernels),
        columns_(columns),
        layer_norm_(maker.op.kernel == "layer_norm"),
        epsilon_(maker.f32_attribute("epsilon")) {
    CpuOpMaker::expect(epsilon_ >= 0, "attribute epsilon is negative");
    const auto has = [&maker](const char* key) { return maker.op.attributes.integer(key, 0, 1) == 1; };
    const bool gain = layer_norm_ ? has("has_gain") : !maker.op.weights.empty();
    const bool bias = layer_norm_ && has("has_bias");
    maker.expect_counts(1, (gain ? 1u : 0u) + (bias ? 1u : 0u));
    if (gain) gain_ = maker.vector(0, columns);
    if (bias) bias_ = maker.vector(gain ? 1 : 0, columns);
  }

  void operator()(const float* x, float* y) const {
    if (layer_norm_) {
      kernels_.layer_norm(x, gain_, bias_, epsilon_, columns_, y);
    } else {
      kernels_.rms_norm(x, gain_, epsilon_, columns_, y);
    }
  }

 private:
  const KernelTable& kernels_;
  int32_t columns_;
  bool layer_norm_;
  float epsilon_;
  const float *gain_ = nullptr, *bias_ = nullptr;
};

class NormOp final : public CpuOp {
 public:
  NormOp(const CpuOpMaker& maker, const CpuValue& in, const CpuValue& out)
      : context_(maker.context), in_(in), out_(out), norm_(maker, in.columns) {}

  void run(const CpuStep& step) override {
    context_.for_rows(step.rows(out_), out_.columns, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        norm_(in_.row(r), out_.row(r));
        out_.clear_padding(r);
      }
    });
  }

 private:
  CpuContext& context_;
  const CpuValue &in_, &out_;
  Norm norm_;
};

// x → tiles of int8, each row normalized on the way when there is a norm.
class Quantize final : public CpuOp {
 public:
  Quantize(const CpuOpMaker& maker, const CpuValue& in, const CpuValue& out, bool norm)
      : context_(maker.context), in_(in), out_(out) {
    if (norm) norm_.emplace(maker, in.columns);
  }

  int64_t scratch_bytes() const override { return norm_ ? context_.kernels.tile_rows_i8 * in_.ld * 4 : 0; }

  void run(const CpuStep& step) override {
    const int64_t tile_rows = even_tile_rows(step.rows(out_), context_.kernels.tile_rows_i8);
    context_.for_rows(step.rows(out_), out_.columns, tile_rows, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t r = begin; r < end; r += tile_rows) {
        quantize_tile(r, static_cast<int>(std::min(tile_rows, end - r)), r / tile_rows, thread);
      }
    });
  }

 private:
  void quantize_tile(int64_t first, int rows, int64_t tile, int thread) const {
    const float* x = in_.row(first);
    if (norm_) {
      auto* normed = reinterpret_cast<float*>(context_.scratch_of(thread));
      for (int r = 0; r < rows; ++r) {
        (*norm_)(in_.row(first + r), normed + r * in_.ld);
      }
      x = normed;
    }
    context_.kernels.quantize_tile(x, in_.ld, rows, in_.columns, out_.k, out_.group, context_.tile(out_, tile));
  }

  CpuContext& context_;
  const CpuValue &in_, &out_;
  std::optional<Norm> norm_;
};

std::unique_ptr<CpuOp> make(const CpuOpMaker& maker, bool norm) {
  maker.expect_counts(1, norm ? maker.op.weights.size() : 0);
  const CpuValue &in = maker.input(0), &out = maker.output();
  CpuOpMaker::expect(!in.quantized && in.columns == out.columns && in.sampled_rows == out.sampled_rows,
                     "its input is not f32 of the output's shape");
  if (out.quantized) return std::make_unique<Quantize>(maker, in, out, norm);
  CpuOpMaker::expect(norm, "its output is not quantized");
  return std::make_unique<NormOp>(maker, in, out);
}

}  // namespace

std::unique_ptr<CpuOp> make_rms_norm(const CpuOpMaker& maker) { return make(maker, true); }
std::unique_ptr<CpuOp> make_layer_norm(const CpuOpMaker& maker) { return make(maker, true); }
std::unique_ptr<CpuOp> make_quantize(const CpuOpMaker& maker) { return make(maker, false); }

}  // namespace precast
