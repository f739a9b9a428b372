#include "runtime/bindings/bindings.h"

namespace precast {

void bind_linear_kernels(nanobind::module_&) {}

}  // namespace precast
