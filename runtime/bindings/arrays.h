// How kernels take numpy arrays: contiguous, of one dtype and number of dimensions.
#pragma once
#include <nanobind/ndarray.h>

#include <string>

namespace precast {

template <typename T, int Dims>
using Read = nanobind::ndarray<const T, nanobind::ndim<Dims>, nanobind::c_contig, nanobind::device::cpu>;
template <typename T, int Dims>
using Write = nanobind::ndarray<T, nanobind::ndim<Dims>, nanobind::c_contig, nanobind::device::cpu>;

// Kernels believe their callers: a wrong shape has to be a ValueError before they run.
inline void require(bool ok, const std::string& otherwise) {
  if (!ok) throw nanobind::value_error(otherwise.c_str());
}

}  // namespace precast
