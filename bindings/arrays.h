// NumPy arrays over the engine's columns, without a copy, in both directions.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <span>
#include <vector>

namespace plimsoll::python {

template <typename T>
using Column =
    nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

template <typename T>
std::span<const T> as_span(const Column<T>& column) {
  return {column.data(), column.shape(0)};
}

// A read-only array that keeps `owner` alive.
template <typename T>
nanobind::object view(const std::vector<T>& values, nanobind::handle owner) {
  return nanobind::cast(nanobind::ndarray<nanobind::numpy, const T, nanobind::ndim<1>>(
      values.data(), {values.size()}, owner));
}

}  // namespace plimsoll::python
