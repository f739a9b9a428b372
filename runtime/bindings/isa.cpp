#include "plugins/cpu/isa.h"

#include <nanobind/stl/string.h>

#include "runtime/bindings/bindings.h"

namespace precast {

void bind_isa(nanobind::module_& m) {
  namespace nb = nanobind;
  m.def("isa_level", &isa_level,
        "The best ISA level of this CPU, or the one that PRECAST_ISA names. Raises EngineError when that is none.");
  m.def("isa_supported", &isa_supported, nb::arg("level"), "True when this CPU can run `level`.");
  m.def("isa_is_emulated", &isa_is_emulated, "True in a build for tests whose levels above avx2 run on AVX2.");
}

}  // namespace precast
