#include "runtime/bindings/bindings.h"

namespace precast {

void bind_executor(nanobind::module_&) {}

}  // namespace precast
