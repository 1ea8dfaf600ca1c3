// Helpers for several of the bindings. They pass arrays without a copy, make a dict of statistics,
// and run Python's signal handlers.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <span>
#include <utility>
#include <vector>

#include "plimsoll/allocator/config.h"
#include "plimsoll/events/statistics.h"

namespace plimsoll::python {

template <typename T>
using Column =
    nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

template <typename T>
std::span<const T> as_span(const Column<T>& column) {
  return {column.data(), column.shape(0)};
}

// Returns a read-only array that keeps `owner` alive.
template <typename T>
nanobind::object view(const std::vector<T>& values, nanobind::handle owner) {
  return nanobind::cast(nanobind::ndarray<nanobind::numpy, const T, nanobind::ndim<1>>(
      values.data(), {values.size()}, owner));
}

// Returns a read-only array that owns the values.
template <typename T>
nanobind::object owned_view(std::vector<T>&& values) {
  auto* const kept = new std::vector<T>(std::move(values));
  const nanobind::capsule owner(kept,
                                [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return view(*kept, owner);
}

inline nanobind::dict statistics_dict(const Statistics& statistics, TorchVersion version,
                                      bool with_tiers = false) {
  nanobind::dict result;
  for (const auto& [name, value] : statistics.flatten(version.has_oom_rejection(), with_tiers)) {
    result[name.c_str()] = value;
  }
  return result;
}

// Runs Python's signal handlers; needs the interpreter's lock. A handler that raises ends the
// current operation.
inline void run_signal_handlers() {
  if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
}

}  // namespace plimsoll::python
