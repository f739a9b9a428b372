#include "runtime/core/machine_limits.h"

#include "plugins/cpu/isa.h"
#include "runtime/bindings/bindings.h"

namespace precast {

namespace nb = nanobind;

void bind_machine_limits(nb::module_& m) {
  nb::class_<MachineLimits>(m, "MachineLimits", "What this machine can do at most, per second; see machine_limits.h.")
      .def_ro("read_bytes", &MachineLimits::read_bytes)
      .def_ro("i8_ops", &MachineLimits::i8_ops)
      .def_ro("bf16_ops", &MachineLimits::bf16_ops)
      .def_ro("f32_ops", &MachineLimits::f32_ops);
  m.def(
      "machine_limits",
      [](int num_threads) {
        ThreadPool pool(num_threads);
        return measure_machine_limits(kernel_table(isa_level()), pool);
      },
      nb::arg("num_threads"), nb::call_guard<nb::gil_scoped_release>(),
      "Measures for about half a second: reading memory, and multiplying as the linears of the ISA level do. Raises "
      "EngineError, MemoryError.");
}

}  // namespace precast
