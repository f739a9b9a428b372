#include "runtime/core/admission.h"

namespace precast {

bool AdmissionPolicy::opens(int32_t num_running) const {
  return policy_ != SchedulerPolicy::static_batch || num_running == 0;
}

AdmissionTerms AdmissionPolicy::terms(const Sequence& sequence, int32_t num_running) const {
  // A page for everybody who runs then: until somebody wants a second one, which takes a page's worth of steps, nobody
  // is paused. Alone, a sequence has the whole pool.
  if (policy_ == SchedulerPolicy::max_utilization) return {sequence.length(), num_running == 0 ? 0 : num_running + 1};
  return {sequence.max_length - 1, 0};  // the last token of all is never run
}

}  // namespace precast
