#pragma once
#include "runtime/core/core.h"

namespace precast {

// Throws std::invalid_argument when a batch breaks an invariant of core.h or a limit: a step that ran anyway would
// write outside its memory. Costs a few microseconds. num_pages[group]: pages of its pool.
void check_step(const StepBatch& batch, const ModelLimits& limits, const std::vector<int32_t>& num_pages);

}  // namespace precast
