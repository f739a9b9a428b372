// The admission policies: when a sequence may enter, and what it is promised. docs/scheduling.md has them in full.
#pragma once
#include "runtime/core/core.h"

namespace precast {

enum class SchedulerPolicy : uint8_t {
  guaranteed_no_evict,  // pages to completion are promised: who runs is never paused
  max_utilization,      // pages of the tokens so far are: who started last is paused when pages run out
  static_batch,  // as the first, but a batch enters together, decodes when all prompts are computed, and ends together
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
  bool opens(int32_t num_running) const;
  AdmissionTerms terms(const Sequence& sequence, int32_t num_running) const;
  // Whether decode waits until all who run have computed their prompts.
  bool decodes_together() const { return policy_ == SchedulerPolicy::static_batch; }
  // Whether a sequence is left to wait for a prefix that another is computing. In a static batch it would miss it.
  bool waits_for_prefixes() const { return policy_ != SchedulerPolicy::static_batch; }

 private:
  SchedulerPolicy policy_;
};

}  // namespace precast
