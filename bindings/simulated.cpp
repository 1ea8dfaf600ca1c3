#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "module.h"
#include "plimsoll/simulated/driver.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace plimsoll::python {

void bind_simulated(nb::module_& module) {
  nb::enum_<DriverModel>(module, "DriverModel")
      .value("linux", DriverModel::linux)
      .value("wddm", DriverModel::wddm);
  nb::enum_<Call>(module, "Call")
      .value("allocate", Call::allocate)
      .value("deallocate", Call::deallocate)
      .value("reserve", Call::reserve)
      .value("unreserve", Call::unreserve)
      .value("create", Call::create)
      .value("release", Call::release)
      .value("map", Call::map)
      .value("set_access", Call::set_access)
      .value("unmap", Call::unmap)
      .value("record", Call::record)
      .value("query", Call::query)
      .value("synchronize", Call::synchronize)
      .value("allocate_host", Call::allocate_host)
      .value("deallocate_host", Call::deallocate_host)
      .value("copy", Call::copy);

  module.attr("COPY_BYTES_PER_NS") = CostModel{}.copy_bytes_per_ns;
  module.attr("HOST_BYTES_PER_NS") = CostModel{}.host_bytes_per_ns;

  nb::class_<SimulatedHost>(module, "SimulatedHost")
      .def(nb::init<Bytes>(), "shared_capacity"_a)
      .def_prop_ro("now_ns", &SimulatedHost::now_ns)
      .def("advance", &SimulatedHost::advance, "duration_ns"_a)
      .def_prop_ro("shared_free", [](const SimulatedHost& host) { return host.shared_info().free; })
      .def_prop_ro("shared_total",
                   [](const SimulatedHost& host) { return host.shared_info().total; });

  nb::class_<SharedCard>(module, "SharedCard")
      .def(nb::init<const std::string&>(), "path"_a)
      .def_prop_ro("users",
                   [](SharedCard& card) {
                     std::vector<std::pair<std::int64_t, Bytes>> users;
                     for (const auto& user : card.users()) {
                       users.emplace_back(user.process, user.most);
                     }
                     return users;
                   })
      .def_prop_ro("together", &SharedCard::together)
      .def_prop_ro("at_most", &SharedCard::at_most)
      .def_prop_ro("is_complete", &SharedCard::is_complete);

  nb::class_<SimulatedDriver>(module, "SimulatedDriver")
      .def(nb::init<SimulatedHost&, Bytes, DriverModel, std::uint32_t>(), "host"_a,
           "dedicated_capacity"_a, "model"_a = DriverModel::linux, "ordinal"_a = 0,
           nb::keep_alive<1, 2>())
      .def_prop_ro("handle",
                   [](SimulatedDriver& gpu) { return reinterpret_cast<std::uintptr_t>(&gpu); })
      .def("share", &SimulatedDriver::share, "card"_a, nb::keep_alive<1, 2>())
      .def("launch", &SimulatedDriver::launch, "stream"_a, "duration_ns"_a)
      .def("synchronize_device", &SimulatedDriver::synchronize_device)
      .def(
          "take",
          // Creates memory but does not map it, because no program accesses this memory.
          [](SimulatedDriver& driver, Bytes size) -> std::optional<Handle> {
            const Bytes granules = (size + kGranule - 1) / kGranule * kGranule;
            Handle handle = 0;
            if (driver.create(granules, Tier::dedicated, handle) != Status::success) {
              return std::nullopt;
            }
            return handle;
          },
          "size"_a)
      .def(
          "give_back",
          [](SimulatedDriver& driver, Handle handle) {
            return driver.release(handle) == Status::success;
          },
          "handle"_a)
      .def(
          "allocate_host",
          [](SimulatedDriver& driver, Bytes size) -> std::optional<Address> {
            Address address = 0;
            if (driver.allocate_host(size, address) != Status::success) return std::nullopt;
            return address;
          },
          "size"_a)
      .def(
          "deallocate_host",
          [](SimulatedDriver& driver, Address address) {
            return driver.deallocate_host(address) == Status::success;
          },
          "address"_a)
      .def(
          "inject",
          [](SimulatedDriver& driver, Call call, std::uint64_t after,
             std::optional<std::uint64_t> times, Status status) {
            Fault fault{call, after};
            if (times) fault.times = *times;
            fault.status = status;
            driver.inject(fault);
          },
          "call"_a, "after"_a = 0, "times"_a = nb::none(), "status"_a = Status::out_of_memory)
      .def("clear_faults", &SimulatedDriver::clear_faults)
      .def("calls", &SimulatedDriver::calls, "call"_a)
      .def_prop_ro("dedicated_free",
                   [](const SimulatedDriver& driver) { return driver.memory_info().free; })
      .def_prop_ro("dedicated_total",
                   [](const SimulatedDriver& driver) { return driver.memory_info().total; })
      .def_prop_ro("dedicated_used", &SimulatedDriver::dedicated_used)
      .def_prop_ro("most_dedicated_used", &SimulatedDriver::most_dedicated_used)
      .def_prop_ro("shared_used", &SimulatedDriver::shared_used)
      .def_prop_ro("reserved_addresses", &SimulatedDriver::reserved_addresses)
      .def_prop_ro("reservations", &SimulatedDriver::reservations)
      .def_prop_ro("handles", &SimulatedDriver::handles)
      .def_prop_ro("mappings", &SimulatedDriver::mappings)
      .def_prop_ro("events", &SimulatedDriver::events)
      .def_prop_ro("driver_seconds", &SimulatedDriver::driver_seconds);
}

}  // namespace plimsoll::python
