// What a step costs: seconds from what is in it. Measured for an engine on a machine (runtime/calibration.py), used by
// the simulator.
#pragma once
#include <utility>
#include <vector>

#include "runtime/core/core.h"

namespace precast {

// What a step's time depends on. Bytes of K/V are counted over all layers, and in windowed layers within the window.
struct StepShape {
  int32_t rows = 0;        // tokens that go through the layers
  int32_t logit_rows = 0;  // rows that go through the head, and tokens that are sampled
  int32_t sequences = 0;
  double decode_kv_bytes = 0;   // seen by sequences of one row
  double prefill_kv_bytes = 0;  // seen by the rows of longer chunks, each row's counted: they share the reading
};

// The shape of a step. Decode and a prompt's single last row are the same work.
StepShape shape_of(const StepBatch& batch, const ModelLimits& limits);
// Adds a sequence's rows at first_position, … to a shape.
void add_rows(const ModelLimits& limits, int32_t num_rows, int32_t first_position, StepShape& shape);

// A function of a count, by its values at rising counts: linear between them, from zero at zero before the first, and
// behind the last with the slope of the last piece.
class PiecewiseLinear {
 public:
  using Point = std::pair<double, double>;  // count, value
  PiecewiseLinear() = default;
  // Throws EngineError unless counts are positive and rise, and all numbers are finite and not negative.
  explicit PiecewiseLinear(std::vector<Point> points);
  double operator()(double count) const;
  const std::vector<Point>& points() const { return points_; }

 private:
  std::vector<Point> points_;  // the first is (0, 0); none: zero everywhere
};

// A sum of what the parts of a step take, in seconds.
struct StepCost {
  PiecewiseLinear rows = {}, logit_rows = {};
  double sequence = 0;         // of each
  double decode_kv_byte = 0;   // of each
  double prefill_kv_byte = 0;  // of each

  double seconds(const StepShape& shape) const;
};

}  // namespace precast
