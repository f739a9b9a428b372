// One function a file of this folder.
#pragma once
#include <nanobind/nanobind.h>

namespace precast {

void bind_isa(nanobind::module_& m);
void bind_linear_kernels(nanobind::module_& m);     // linear, quantize, gather
void bind_attention_kernels(nanobind::module_& m);  // rms_norm, rope, kv_append, paged_attention
void bind_engine(nanobind::module_& m);             // engine files and the CPU backend
void bind_executor(nanobind::module_& m);           // requests, scheduler, sampling, text out

}  // namespace precast
