#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>

#include <utility>

#include "module.h"
#include "plimsoll/driver/driver.h"
#include "plimsoll/driver/host_memory.h"

namespace nb = nanobind;

namespace plimsoll::python {

void bind_driver(nb::module_& module) {
  module.def(
      "host_memory",
      [] {
        const MemoryInfo info = host_memory();
        return std::pair(info.free, info.total);
      },
      "Free and total bytes of the host's memory, as far as this process may use them: a "
      "container's limits count.");
  nb::enum_<Status>(module, "Status")
      .value("success", Status::success)
      .value("out_of_memory", Status::out_of_memory)
      .value("invalid_value", Status::invalid_value)
      .value("not_ready", Status::not_ready)
      .value("not_supported", Status::not_supported)
      .value("not_permitted", Status::not_permitted)
      .value("device_lost", Status::device_lost)
      .value("driver_gone", Status::driver_gone)
      .value("failed", Status::failed);
}

}  // namespace plimsoll::python
