// Step costs, and scheduler and cache in virtual time.
#include "runtime/core/simulator.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "runtime/bindings/bindings.h"
#include "runtime/core/step_timer.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace precast {
namespace {

using Points = std::vector<PiecewiseLinear::Point>;
using Doubles = nb::ndarray<nb::numpy, double, nb::ndim<1>, nb::c_contig>;

Doubles array_of(std::vector<double> values) {
  auto* kept = new std::vector<double>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<double>*>(p); });
  return Doubles(kept->data(), {kept->size()}, owner);
}

void check_time(double seconds) { PiecewiseLinear({{1, seconds}}); }

void bind_costs(nb::module_& m) {
  nb::class_<StepShape>(m, "StepShape", "What a step's time depends on; see runtime/core/step_cost.h.")
      .def_ro("rows", &StepShape::rows)
      .def_ro("logit_rows", &StepShape::logit_rows)
      .def_ro("sequences", &StepShape::sequences)
      .def_ro("decode_kv_bytes", &StepShape::decode_kv_bytes)
      .def_ro("prefill_kv_bytes", &StepShape::prefill_kv_bytes);
  nb::class_<StepCost>(m, "StepCost", "Seconds of a step by what is in it; see runtime/core/step_cost.h.")
      .def(
          "__init__",
          [](StepCost* self, Points rows, Points logit_rows, double sequence, double decode_kv_byte,
             double prefill_kv_byte) {
            for (const double seconds : {sequence, decode_kv_byte, prefill_kv_byte}) check_time(seconds);
            new (self) StepCost{PiecewiseLinear(std::move(rows)), PiecewiseLinear(std::move(logit_rows)), sequence,
                                decode_kv_byte, prefill_kv_byte};
          },
          nb::kw_only(), "rows"_a = Points{}, "logit_rows"_a = Points{}, "sequence"_a = 0.0, "decode_kv_byte"_a = 0.0,
          "prefill_kv_byte"_a = 0.0,
          "All in seconds; rows and logit_rows are (count, seconds) by rising count. Raises EngineError for what is no "
          "time.")
      .def("seconds", &StepCost::seconds, "shape"_a);
  nb::class_<StepTimer>(m, "StepTimer", "Times single steps of a backend.")
      .def(
          "__init__",
          [](StepTimer* self, std::shared_ptr<Backend> backend, int32_t num_pages) {
            new (self) StepTimer(std::move(backend), num_pages);
          },
          "backend"_a, "num_pages"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Allocates num_pages KV pages for every layer group and fills them. Not for a backend that an executor runs. "
          "Raises MemoryError.")
      .def("seconds", &StepTimer::seconds, "sequences"_a, "with_logits"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Runs one step of sequences of (number of rows, first position), with a greedily sampled token each if "
           "with_logits. Raises ValueError for a step that the engine does not take or that needs more pages.")
      .def("shape", &StepTimer::shape, "sequences"_a, "with_logits"_a);
}

// Requests, kept on this side so that many simulations of one workload do not convert them again.
class Workload {
 public:
  void add(double arrival, const std::variant<int32_t, std::vector<TokenId>>& prompt, int32_t output_tokens,
           int32_t max_tokens, int32_t shared_prefix_tokens, int32_t prefix, int32_t priority,
           std::optional<std::string> cache_salt) {
    SimulatedRequest request;
    request.arrival = arrival;
    if (const auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) {
      request.prompt = *ids;
    } else {
      const int32_t tokens = std::get<int32_t>(prompt);
      if (tokens < 0 || shared_prefix_tokens < 0 || prefix < 0) throw nb::value_error("a count is negative");
      request.prompt = simulated_prompt(requests.size(), tokens, shared_prefix_tokens, prefix);
    }
    request.output_tokens = output_tokens;
    request.max_tokens = max_tokens;
    request.options.priority = priority;
    request.options.cache_salt = std::move(cache_salt);
    requests.push_back(std::move(request));
  }

  std::vector<SimulatedRequest> requests;
};

void bind_workload(nb::module_& m) {
  nb::class_<Workload>(m, "Workload", "Requests for `simulate`.")
      .def(nb::init<>())
      .def("add", &Workload::add, "arrival"_a, "prompt"_a, "output_tokens"_a, nb::kw_only(), "max_tokens"_a = 0,
           "shared_prefix_tokens"_a = 0, "prefix"_a = 0, "priority"_a = 0, "cache_salt"_a = nb::none(),
           "Adds a request. arrival: seconds, not before the last one's. prompt: token ids, or a number of tokens, the "
           "first shared_prefix_tokens of which are those of every request of that `prefix`. It ends after "
           "output_tokens, and asks for max_tokens if those are more.")
      .def("__len__", [](const Workload& w) { return w.requests.size(); });
}

Doubles times_of(const Simulated& s, double (*time)(const SimulatedOutput&)) {
  std::vector<double> times;
  for (const SimulatedOutput& output : s.outputs) times.push_back(time(output));
  return array_of(std::move(times));
}

void bind_results(nb::module_& m) {
  nb::class_<SimulatedStep>(m, "SimulatedStep")
      .def_ro("begin", &SimulatedStep::begin)
      .def_ro("seconds", &SimulatedStep::seconds)
      .def_ro("shape", &SimulatedStep::shape)
      .def_ro("running", &SimulatedStep::running)
      .def_ro("waiting", &SimulatedStep::waiting)
      .def_ro("held_pages", &SimulatedStep::held_pages);
  nb::class_<Simulated>(m, "Simulated", "What became of a workload. Times in seconds; arrays are in its order.")
      .def_prop_ro(
          "admitted", [](const Simulated& s) { return times_of(s, [](const auto& o) { return o.admitted; }); },
          nb::rv_policy::automatic)
      .def_prop_ro(
          "finished", [](const Simulated& s) { return times_of(s, [](const auto& o) { return o.finished; }); },
          nb::rv_policy::automatic)
      .def_prop_ro(
          "first_tokens",
          [](const Simulated& s) { return times_of(s, [](const auto& o) { return o.token_times.at(0); }); },
          nb::rv_policy::automatic)
      .def(
          "token_times", [](const Simulated& s, size_t request) { return array_of(s.outputs.at(request).token_times); },
          "request"_a)
      .def_prop_ro("cached_tokens",
                   [](const Simulated& s) {
                     std::vector<int32_t> counts;
                     for (const SimulatedOutput& output : s.outputs) counts.push_back(output.cached_tokens);
                     return counts;
                   })
      .def_ro("steps", &Simulated::steps, "Of every step, when recorded.")
      .def_ro("makespan", &Simulated::makespan)
      .def_ro("busy_seconds", &Simulated::busy_seconds)
      .def_ro("num_steps", &Simulated::num_steps)
      .def_ro("rows", &Simulated::rows)
      .def_ro("peak_kv_tokens", &Simulated::peak_kv_tokens, "Most positions in pages; shared ones count for each.")
      .def_ro("peak_pages", &Simulated::peak_pages, "Of each layer group; shared ones count once.")
      .def_ro("pauses", &Simulated::pauses)
      .def_ro("evicted_pages", &Simulated::evicted_pages);
}

}  // namespace

void bind_simulator(nb::module_& m) {
  bind_costs(m);
  bind_workload(m);
  bind_results(m);
  m.def(
      "simulate",
      [](const Workload& workload, const ModelLimits& limits, const StepCost& cost,
         const std::variant<int32_t, std::vector<int32_t>>& num_pages, int32_t max_num_tokens, int32_t max_batch_size,
         int32_t max_chunk_tokens, const std::string& scheduler_policy, const std::string& request_order,
         const std::string& prefill_order, int32_t max_overtakes, bool enable_prefix_caching, int32_t gather,
         bool record_steps) {
        const SimulatorConfig config{
            .limits = limits,
            .num_pages = pages_of_groups(num_pages, limits.groups.size()),
            .scheduler = scheduler_config(max_num_tokens, max_batch_size, max_chunk_tokens, scheduler_policy,
                                          request_order, prefill_order, max_overtakes),
            .cost = cost,
            .enable_prefix_caching = enable_prefix_caching,
            .gather = gather,
            .record_steps = record_steps};
        const nb::gil_scoped_release released;
        return Simulator(config, workload.requests).run();
      },
      "workload"_a, "limits"_a, "cost"_a, nb::kw_only(), "num_pages"_a, "max_num_tokens"_a = 0, "max_batch_size"_a = 0,
      "max_chunk_tokens"_a = 0, "scheduler_policy"_a = "guaranteed_no_evict", "request_order"_a = "fcfs",
      "prefill_order"_a = "first_come", "max_overtakes"_a = SchedulerConfig{}.max_overtakes,
      "enable_prefix_caching"_a = true, "gather"_a = 1, "record_steps"_a = false,
      "Serves a workload in virtual time, as an Executor of these options would. gather: requests reach the scheduler "
      "that many at a time, when the last of them has arrived. Raises RequestError for a request that can never run, "
      "EngineError for options that cannot.");
}

}  // namespace precast
