#include "runtime/bindings/bindings.h"

namespace precast {

void bind_engine(nanobind::module_&) {}

}  // namespace precast
