#include <doctest/doctest.h>

#include <random>

#include "runtime/core/check.h"
#include "runtime/core/simulator.h"

namespace precast {
namespace {

// Every step takes one unit of time.
StepCost one_a_step() { return {.rows = PiecewiseLinear({{1, 1}, {2, 1}})}; }

SimulatorConfig config_of(ModelLimits limits, int32_t pages) {
  return {.limits = std::move(limits), .num_pages = {pages}, .scheduler = {}, .cost = one_a_step()};
}

ModelLimits limits() { return {1, 8, 64, 1000, 4, {{0, 1, 8}}}; }

SimulatedRequest request(double arrival, int32_t prompt, int32_t output, size_t id = 0) {
  return {.arrival = arrival, .prompt = simulated_prompt(id, prompt, 0, 0), .output_tokens = output};
}

TEST_CASE("a request alone: its chunks, then a token a step, and an idle clock jumps to the next arrival") {
  SimulatorConfig config = config_of(limits(), 100);
  config.scheduler.max_chunk_tokens = 20;
  Simulator simulator(config, {request(3, 50, 4), request(100, 5, 1, 1)});
  const Simulated result = simulator.run();
  CHECK(result.outputs[0].admitted == 3);
  CHECK(result.outputs[0].token_times == std::vector<double>{6, 7, 8, 9});
  CHECK(result.outputs[0].finished == 9);
  CHECK(result.outputs[1].token_times == std::vector<double>{101});
  CHECK(result.makespan == 101);
  CHECK(result.busy_seconds == 7);
  CHECK(result.num_steps == 7);
  CHECK(result.rows == 50 + 3 + 5);
  CHECK(result.peak_kv_tokens == 53);
  CHECK(result.peak_pages == std::vector<int32_t>{14});
}

TEST_CASE("who has another prefix computes it, who has the same finds it") {
  SimulatorConfig config = config_of(limits(), 200);
  std::vector<SimulatedRequest> requests;
  for (size_t i = 0; i < 3; ++i) {
    requests.push_back({.arrival = 10.0 * static_cast<double>(i),
                        .prompt = simulated_prompt(i, 60, 30, i == 2 ? 8 : 7),
                        .output_tokens = 2});
  }
  const Simulated result = Simulator(config, requests).run();
  CHECK(result.outputs[1].cached_tokens == 30);
  CHECK(result.outputs[2].cached_tokens == 0);
  config.enable_prefix_caching = false;
  CHECK(Simulator(config, requests).run().outputs[1].cached_tokens == 0);
}

TEST_CASE("gathered requests enter together, the last ones when no others come") {
  SimulatorConfig config = config_of(limits(), 200);
  config.scheduler.policy = SchedulerPolicy::static_batch;
  config.gather = 2;
  const Simulated result = Simulator(config, {request(0, 4, 9, 0), request(5, 60, 3, 1), request(6, 4, 1, 2)}).run();
  CHECK(result.outputs[0].admitted == 5);
  CHECK(result.outputs[1].admitted == 5);
  CHECK(result.outputs[0].token_times[0] == 6);
  CHECK(result.outputs[2].admitted == result.outputs[0].finished);
}

TEST_CASE("in a static batch decode waits until all prompts are computed") {
  SimulatorConfig config = config_of(limits(), 200);
  config.scheduler = {.max_chunk_tokens = 20, .policy = SchedulerPolicy::static_batch};
  const Simulated result = Simulator(config, {request(0, 4, 3, 0), request(0, 60, 2, 1)}).run();
  CHECK(result.outputs[0].token_times == std::vector<double>{1, 4, 5});
  CHECK(result.outputs[1].token_times == std::vector<double>{3, 4});
}

TEST_CASE("a request can be cancelled while it waits, runs, or is gathered, and not after its end") {
  SimulatorConfig config = config_of(limits(), 200);
  config.scheduler.max_batch_size = 1;
  std::vector<SimulatedRequest> requests = {request(0, 4, 10, 0), request(0, 4, 10, 1), request(0, 4, 2, 2)};
  requests[0].cancelled = 3;
  requests[1].cancelled = 2;
  requests[2].cancelled = 50;
  Simulated result = Simulator(config, requests).run();
  CHECK(result.outputs[0].token_times.size() == 3);
  CHECK(result.outputs[0].finished == 3);
  CHECK(result.outputs[1].token_times.empty());
  CHECK(result.outputs[1].admitted == -1);
  CHECK_FALSE(result.outputs[2].cancelled);
  CHECK(result.outputs[2].token_times == std::vector<double>{4, 5});
  config.gather = 3;
  requests[2].arrival = 40;
  result = Simulator(config, requests).run();
  CHECK(result.outputs[1].finished == 2);
  CHECK(result.outputs[2].finished == 42);
}

TEST_CASE("what can never run is refused") {
  const SimulatorConfig config = config_of(limits(), 10);
  CHECK_THROWS_AS(Simulator(config, {request(0, 30, 12)}), RequestError);  // 41 positions in 40
  CHECK_NOTHROW(Simulator(config, {request(0, 30, 11)}));
  CHECK_THROWS_AS(Simulator(config, {request(0, 999, 2)}), RequestError);
  CHECK_THROWS_AS(Simulator(config, {request(0, 0, 2)}), RequestError);
  CHECK_THROWS_AS(Simulator(config, {request(0, 3, 0)}), RequestError);
  CHECK_THROWS_AS(Simulator(config, {request(2, 3, 1), request(1, 3, 1)}), RequestError);
  SimulatorConfig chunks = config;
  chunks.scheduler.max_chunk_tokens = 3;
  CHECK_THROWS_AS(Simulator(chunks, {}), EngineError);
}

// ---- step costs -----------------------------------------------------------------------------------------------------

TEST_CASE("the K/V that a step sees is counted row by row, in windows too") {
  const ModelLimits model{1, 8, 64, 1000, 4, {{0, 2, 400}, {10, 1, 20}}};
  std::mt19937 random(1);
  for (int i = 0; i < 1000; ++i) {
    const auto first = static_cast<int32_t>(random() % 40), rows = static_cast<int32_t>(random() % 30 + 1);
    double expected = 0;
    for (int32_t p = first; p < first + rows; ++p) expected += 100 * (p + 1) + 5 * std::min(p + 1, 10);
    StepShape shape;
    add_rows(model, rows, first, shape);
    CHECK(shape.rows == rows);
    CHECK((rows == 1 ? shape.decode_kv_bytes : shape.prefill_kv_bytes) == doctest::Approx(expected));
    CHECK((rows == 1 ? shape.prefill_kv_bytes : shape.decode_kv_bytes) == 0);
  }
}

TEST_CASE("a step's cost is the sum of its parts, linear between measured counts and beyond them") {
  const StepCost cost{.rows = PiecewiseLinear({{1, 10}, {4, 16}, {8, 32}}),
                      .logit_rows = PiecewiseLinear({{2, 6}}),
                      .sequence = 0.5,
                      .decode_kv_byte = 0.25,
                      .prefill_kv_byte = 0.125};
  CHECK(cost.rows(0) == 0);
  CHECK(cost.rows(1) == 10);
  CHECK(cost.rows(2) == 12);
  CHECK(cost.rows(16) == 64);
  CHECK(cost.logit_rows(1) == 3);
  CHECK(cost.logit_rows(4) == 12);
  CHECK(cost.seconds({.rows = 4, .logit_rows = 2, .sequences = 2, .decode_kv_bytes = 8, .prefill_kv_bytes = 16}) ==
        16 + 6 + 1 + 2 + 2);
  CHECK(PiecewiseLinear()(7) == 0);
  CHECK_THROWS_AS(PiecewiseLinear({{2, 1}, {2, 2}}), EngineError);
  CHECK_THROWS_AS(PiecewiseLinear({{0, 1}}), EngineError);
  CHECK_THROWS_AS(PiecewiseLinear({{1, -1}}), EngineError);
  CHECK_THROWS_AS(PiecewiseLinear({{1, std::nan("")}}), EngineError);
}

}  // namespace
}  // namespace precast
