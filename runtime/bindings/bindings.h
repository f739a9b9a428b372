// One function a file of this folder.
#pragma once
#include <nanobind/nanobind.h>

#include <string>
#include <variant>
#include <vector>

#include "plugins/cpu/kernels.h"
#include "runtime/core/scheduler.h"

namespace precast {

void bind_isa(nanobind::module_& m);
void bind_elementwise_kernels(nanobind::module_& m);  // activations, scale, add, softcap, clip, routing
void bind_linear_kernels(nanobind::module_& m);       // linear, quantize, gather
void bind_attention_kernels(nanobind::module_& m);    // norms, rope, kv_append, paged_attention
void bind_sampling_kernels(nanobind::module_& m);     // scans of a vocabulary
void bind_engine(nanobind::module_& m);               // engine files and the CPU backend
void bind_sampling(nanobind::module_& m);             // sampling parameters, sampler, text out
void bind_executor(nanobind::module_& m);             // requests, scheduler, outputs; after bind_sampling
void bind_machine_limits(nanobind::module_& m);       // what this machine can do at most
void bind_simulator(nanobind::module_& m);            // step costs, and the scheduler in virtual time

// Throw EngineError for a name that does not exist, or another number of pools than of layer groups.
SchedulerConfig scheduler_config(int32_t max_num_tokens, int32_t max_batch_size, int32_t max_chunk_tokens,
                                 const std::string& scheduler_policy, const std::string& request_order,
                                 const std::string& prefill_order, int32_t max_overtakes);
std::vector<int32_t> pages_of_groups(const std::variant<int32_t, std::vector<int32_t>>& num_pages, size_t num_groups);

Activation activation_of(const std::string& name);  // throws nanobind::value_error

}  // namespace precast
