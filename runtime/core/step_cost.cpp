#include "runtime/core/step_cost.h"

#include <algorithm>
#include <cmath>

namespace precast {
namespace {

// Positions that the rows first … first + rows − 1 see, summed over the rows; window 0: all.
double positions_seen(int32_t first, int32_t rows, int32_t window) {
  const double from = first + 1.0, to = double{from} + rows - 1;  // what the first and the last row see
  const double most = window == 0 ? to : window;
  if (from >= most) return rows * most;
  const double rising = std::min(to, most) - from + 1;  // rows that see all before them
  return rising * (2 * from + rising - 1) / 2 + (rows - rising) * most;
}

}  // namespace

void add_rows(const ModelLimits& limits, int32_t num_rows, int32_t first_position, StepShape& shape) {
  double bytes = 0;
  for (const KvGroup& group : limits.groups) {
    const double each = static_cast<double>(group.page_bytes) / limits.page_tokens;
    bytes += each * positions_seen(first_position, num_rows, group.window);
  }
  (num_rows == 1 ? shape.decode_kv_bytes : shape.prefill_kv_bytes) += bytes;
  shape.rows += num_rows;
  ++shape.sequences;
}

StepShape shape_of(const StepBatch& batch, const ModelLimits& limits) {
  StepShape shape;
  for (const StepSequence& s : batch.sequences) add_rows(limits, s.num_rows, s.first_position, shape);
  shape.logit_rows = static_cast<int32_t>(batch.logit_rows.size());
  return shape;
}

PiecewiseLinear::PiecewiseLinear(std::vector<Point> points) : points_(std::move(points)) {
  double last = 0;
  for (const auto& [count, value] : points_) {
    if (!std::isfinite(count) || !std::isfinite(value) || count <= last || value < 0) {
      throw EngineError("a step cost has counts that do not rise from zero, or a value that is no time");
    }
    last = count;
  }
  if (!points_.empty()) points_.insert(points_.begin(), {0, 0});
}

double PiecewiseLinear::operator()(double count) const {
  if (points_.empty()) return 0;
  const auto above = [](double c, const Point& p) { return c < p.first; };
  auto next = std::upper_bound(points_.begin() + 1, points_.end() - 1, count, above);
  const auto& [x0, y0] = *(next - 1);
  const auto& [x1, y1] = *next;
  return std::max(0.0, y0 + (y1 - y0) * (count - x0) / (x1 - x0));
}

double StepCost::seconds(const StepShape& shape) const {
  return rows(shape.rows) + logit_rows(shape.logit_rows) + sequence * shape.sequences +
         decode_kv_byte * shape.decode_kv_bytes + prefill_kv_byte * shape.prefill_kv_bytes;
}

}  // namespace precast
