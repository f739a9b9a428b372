// Options of scheduler and pools, by their names: for the executor and the simulator.
#include <initializer_list>
#include <string>
#include <utility>

#include "runtime/bindings/bindings.h"

namespace precast {
namespace {

template <typename Enum>
Enum named(const char* what, const std::string& name, std::initializer_list<std::pair<const char*, Enum>> values) {
  std::string all;
  for (const auto& [known, value] : values) {
    if (name == known) return value;
    all += std::string(all.empty() ? "" : ", ") + known;
  }
  throw EngineError(std::string(what) + " is " + name + "; it must be one of " + all);
}

}  // namespace

SchedulerConfig scheduler_config(int32_t max_num_tokens, int32_t max_batch_size, int32_t max_chunk_tokens,
                                 const std::string& scheduler_policy, const std::string& request_order,
                                 const std::string& prefill_order, int32_t max_overtakes) {
  return {.max_num_tokens = max_num_tokens,
          .max_batch_size = max_batch_size,
          .max_chunk_tokens = max_chunk_tokens,
          .policy = named<SchedulerPolicy>("scheduler_policy", scheduler_policy,
                                           {{"guaranteed_no_evict", SchedulerPolicy::guaranteed_no_evict},
                                            {"max_utilization", SchedulerPolicy::max_utilization},
                                            {"static_batch", SchedulerPolicy::static_batch}}),
          .request_order = named<RequestOrder>("request_order", request_order,
                                               {{"fcfs", RequestOrder::fcfs},
                                                {"priority", RequestOrder::priority},
                                                {"cache_aware", RequestOrder::cache_aware}}),
          .prefill_order = named<PrefillOrder>(
              "prefill_order", prefill_order,
              {{"first_come", PrefillOrder::first_come}, {"equal_progress", PrefillOrder::equal_progress}}),
          .max_overtakes = max_overtakes};
}

// One number: for every layer group.
std::vector<int32_t> pages_of_groups(const std::variant<int32_t, std::vector<int32_t>>& num_pages, size_t num_groups) {
  if (const auto* pages = std::get_if<int32_t>(&num_pages)) return std::vector<int32_t>(num_groups, *pages);
  const auto& each = std::get<std::vector<int32_t>>(num_pages);
  if (each.size() != num_groups) {
    throw EngineError("num_pages has " + std::to_string(each.size()) + " numbers, and the engine has " +
                      std::to_string(num_groups) + " layer groups");
  }
  return each;
}

}  // namespace precast
