#include "plugins/cpu/isa.h"

#include <nanobind/stl/string.h>

#include "runtime/bindings/bindings.h"

namespace precast {

void bind_isa(nanobind::module_& m) {
  namespace nb = nanobind;
  // A PrecastError, so that the command line shows it as the user's mistake that it is.
  nb::exception<IsaError>(m, "IsaError", nb::module_::import_("precast.errors").attr("PrecastError"));
  m.def("isa_level", &isa_level, "The best ISA level of this CPU, or the one that PRECAST_ISA names.");
  m.def("isa_supported", &isa_supported, nb::arg("level"), "True when this CPU can run `level`.");
  m.def("avx512_is_emulated", &avx512_is_emulated, "True in a build for tests whose level avx512 runs on AVX2.");
}

}  // namespace precast
