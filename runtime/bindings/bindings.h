// One function a file of this folder.
#pragma once
#include <nanobind/nanobind.h>

#include <string>

#include "plugins/cpu/kernels.h"

namespace precast {

void bind_isa(nanobind::module_& m);
void bind_elementwise_kernels(nanobind::module_& m);  // activations, scale, add, softcap, clip, routing
void bind_linear_kernels(nanobind::module_& m);       // linear, quantize, gather
void bind_attention_kernels(nanobind::module_& m);    // norms, rope, kv_append, paged_attention
void bind_sampling_kernels(nanobind::module_& m);     // scans of a vocabulary
void bind_engine(nanobind::module_& m);               // engine files and the CPU backend
void bind_executor(nanobind::module_& m);             // requests, scheduler, sampling, text out

Activation activation_of(const std::string& name);  // throws nanobind::value_error

}  // namespace precast
