// The admission policies: when a sequence may enter, and what it is promised. docs/scheduling.md has them in full.
#pragma once
#include "runtime/core/core.h"

namespace precast {

enum class SchedulerPolicy : uint8_t {
  guaranteed_no_evict,  // pages to completion are promised: who runs is never paused
  max_utilization,      // pages of the tokens so far are: who started last is paused when pages run out
  static_batch,         // as the first, but nobody enters before all of a batch are finished. For comparison
};

// What admitting a sequence takes.
struct AdmissionTerms {
  int32_t num_positions;  // that are promised to it
  int32_t spare_pages;    // that must stay available beyond, in every layer group
};

class AdmissionPolicy {
 public:
  explicit AdmissionPolicy(SchedulerPolicy policy) : policy_(policy) {}

  // Whether anybody may enter beside `num_running` sequences.
  bool opens(int32_t num_running) const { return policy_ != SchedulerPolicy::static_batch || num_running == 0; }
  AdmissionTerms terms(const Sequence& sequence, int32_t num_running) const {
    // A page for everybody who runs then: until somebody wants a second one, which takes a page's worth of steps,
    // nobody is paused. Alone, a sequence has the whole pool.
    if (policy_ == SchedulerPolicy::max_utilization) return {sequence.length(), num_running == 0 ? 0 : num_running + 1};
    return {sequence.max_length - 1, 0};  // the last token of all is never run
  }
  // Whether a sequence is left to wait for a prefix that another is computing. In a static batch it would miss it.
  bool waits_for_prefixes() const { return policy_ != SchedulerPolicy::static_batch; }

 private:
  SchedulerPolicy policy_;
};

}  // namespace precast
