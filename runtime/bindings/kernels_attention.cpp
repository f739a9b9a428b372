#include "runtime/bindings/bindings.h"

namespace precast {

void bind_attention_kernels(nanobind::module_&) {}

}  // namespace precast
