// The native module: `precast._native` with the submodules `kernels` (for tests and the builder) and `runtime`.
#include <nanobind/nanobind.h>

#include "runtime/bindings/bindings.h"

NB_MODULE(_native, m) {
  m.doc() = "precast's C++ core";
  nanobind::module_ kernels = m.def_submodule("kernels", "CPU kernels, one table per ISA level");
  precast::bind_isa(kernels);
  precast::bind_linear_kernels(kernels);
  precast::bind_attention_kernels(kernels);
  precast::bind_elementwise_kernels(kernels);
  precast::bind_sampling_kernels(kernels);
  nanobind::module_ runtime = m.def_submodule("runtime", "Engines, requests and the loop");
  // In this order: an executor takes the parameters, and engines give out the backends, that are declared before.
  precast::bind_sampling(runtime);
  precast::bind_executor(runtime);
  precast::bind_engine(runtime);
  precast::bind_simulator(runtime);
  precast::bind_machine_limits(runtime);
}
