// Times single steps of a backend: what step costs are measured with.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "runtime/core/core.h"
#include "runtime/core/sampler.h"
#include "runtime/core/step_cost.h"

namespace precast {

class StepTimer {
 public:
  // Allocates num_pages pages for every layer group and fills them, so that reading them costs what it costs in
  // serving. Not for a backend that an executor runs. Throws std::bad_alloc.
  StepTimer(std::shared_ptr<Backend> backend, int32_t num_pages);

  using Rows = std::pair<int32_t, int32_t>;  // of a sequence: number of rows, first position
  // Seconds of one step of these sequences, with the greedy sampling of a token after each one's last row if
  // `with_logits`. Throws std::invalid_argument for a step that the engine does not take or that needs more pages.
  double seconds(const std::vector<Rows>& sequences, bool with_logits);
  StepShape shape(const std::vector<Rows>& sequences, bool with_logits) const;

 private:
  StepBatch batch_of(const std::vector<Rows>& sequences, bool with_logits) const;
  void fill();

  std::shared_ptr<Backend> backend_;
  int32_t num_pages_;
  Sampler sampler_;
  std::vector<float> logits_;
};

}  // namespace precast
