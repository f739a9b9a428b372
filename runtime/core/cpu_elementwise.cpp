// Ops that work on each element alone.
#include "runtime/core/cpu_op_maker.h"

namespace precast {

namespace {

// fn(row of the first input, of the last input, columns, row of y) for each row; an op of one input gets it twice.
template <typename Fn>
class Elementwise final : public CpuOp {
 public:
  Elementwise(const CpuOpMaker& maker, size_t inputs, const Fn& fn)
      : context_(maker.context), out_(maker.output()), fn_(fn) {
    CpuOpMaker::expect(!out_.quantized, "its output is not f32");
    a_ = &maker.f32_input(0, out_.columns, out_.sampled_rows);
    b_ = &maker.f32_input(inputs - 1, out_.columns, out_.sampled_rows);
  }

  void run(const CpuStep& step) override {
    context_.for_rows(step.rows(out_), out_.columns, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        fn_(a_->row(r), b_->row(r), out_.columns, out_.row(r));
        out_.clear_padding(r);
      }
    });
  }

 private:
  CpuContext& context_;
  const CpuValue *a_, *b_, &out_;
  Fn fn_;
};

template <typename Fn>
std::unique_ptr<CpuOp> make(const CpuOpMaker& maker, size_t inputs, const Fn& fn) {
  maker.expect_counts(inputs, 0);
  return std::make_unique<Elementwise<Fn>>(maker, inputs, fn);
}

}  // namespace

std::unique_ptr<CpuOp> make_activation(const CpuOpMaker& maker) {
  const auto kernel = maker.context.kernels.activation;
  return make(maker, 1, [kernel, kind = maker.activation()](const float* x, const float*, int n, float* y) {
    kernel(kind, x, n, y);
  });
}

std::unique_ptr<CpuOp> make_gated_activation(const CpuOpMaker& maker) {
  const auto kernel = maker.context.kernels.gated_activation;
  return make(maker, 2, [kernel, kind = maker.activation()](const float* gate, const float* up, int n, float* y) {
    kernel(kind, gate, up, n, y);
  });
}

}  // namespace precast
