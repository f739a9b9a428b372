// Ops that work on each element alone. They may write over an input and work on the logits.
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
    a_ = &maker.elementwise_input(0, out_);
    b_ = &maker.elementwise_input(inputs - 1, out_);
  }

  void run(const CpuStep& step) override {
    context_.for_rows(step.rows(out_), out_.columns, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        fn_(step.row(*a_, r), step.row(*b_, r), out_.columns, step.row(out_, r));
        if (out_.data != nullptr) out_.clear_padding(r);
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

std::unique_ptr<CpuOp> make_scale(const CpuOpMaker& maker) {
  const auto kernel = maker.context.kernels.scale;
  return make(maker, 1,
              [kernel, factor = maker.f32_attribute("factor")](const float* x, const float*, int n, float* y) {
                kernel(x, factor, n, y);
              });
}

std::unique_ptr<CpuOp> make_softcap(const CpuOpMaker& maker) {
  const auto kernel = maker.context.kernels.softcap;
  const float cap = maker.f32_attribute("cap");
  CpuOpMaker::expect(cap > 0, "attribute cap is not positive");
  return make(maker, 1, [kernel, cap](const float* x, const float*, int n, float* y) { kernel(x, cap, n, y); });
}

std::unique_ptr<CpuOp> make_add(const CpuOpMaker& maker) { return make(maker, 2, maker.context.kernels.add); }

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
