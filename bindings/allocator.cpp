#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "module.h"
#include "plimsoll/allocator/allocator.h"
#include "plimsoll/allocator/config.h"
#include "plimsoll/allocator/host/backup_store.h"
#include "plimsoll/allocator/host/host_pool.h"
#include "plimsoll/engine/allocators.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace plimsoll::python {

void bind_allocator(nb::module_& module) {
  nb::exception<ConfigError>(module, "ConfigError", PyExc_ValueError);
  nb::exception<UnknownAddress>(module, "UnknownAddress", PyExc_ValueError);
  nb::exception<DriverError>(module, "DriverError", PyExc_RuntimeError);
  nb::exception<OutOfMemory>(module, "OutOfMemory", PyExc_RuntimeError);
  nb::exception<HostOutOfMemory>(module, "HostOutOfMemory", PyExc_RuntimeError);
  nb::exception<BackupError>(module, "BackupError", PyExc_RuntimeError);

  module.attr("OLDEST_VERSION") = kOldestTorch.to_string();
  module.attr("NEWEST_VERSION") = kNewestTorch.to_string();
  module.def(
      "torch_rules",
      [] {
        return std::map<std::string, std::pair<int, int>>{
#define PLIMSOLL_SINCE(rule, major, minor) {#rule, {major, minor}},
#include "plimsoll/torch_versions.inc"
        };
      },
      "The rules that hold in some versions of PyTorch alone, and since which one each holds.");
  module.def(
      "plain_version",
      [](const std::string& version) { return TorchVersion::parse(version).to_string(); },
      "version"_a, "The version of PyTorch without patch level and build: 2.11 for 2.11.0+cu130.");
  nb::class_<AllocatorConfig>(module, "AllocatorConfig")
      .def_static(
          "parse",
          [](const std::string& text, const std::string& version) {
            return AllocatorConfig::parse(text, TorchVersion::parse(version));
          },
          "text"_a, "version"_a)
      .def(
          "with_settings",
          [](const AllocatorConfig& self, const std::string& text, const std::string& version) {
            return self.with(text, TorchVersion::parse(version));
          },
          "text"_a, "version"_a, "This one after a program makes these settings too.")
      .def_ro("text", &AllocatorConfig::text)
      .def_prop_ro("max_split_size",
                   [](const AllocatorConfig& config) -> std::optional<Bytes> {
                     if (config.max_split_size == AllocatorConfig::kUnlimited) return std::nullopt;
                     return config.max_split_size;
                   })
      .def_ro("max_non_split_rounding", &AllocatorConfig::max_non_split_rounding)
      .def_ro("large_segment_size", &AllocatorConfig::large_segment_size)
      .def_ro("garbage_collection_threshold", &AllocatorConfig::garbage_collection_threshold)
      .def_ro("per_process_memory_fraction", &AllocatorConfig::per_process_memory_fraction)
      .def_ro("expandable_segments", &AllocatorConfig::expandable_segments)
      .def_prop_ro("roundup_power2_divisions",
                   [](const AllocatorConfig& config) {
                     return std::vector<Bytes>(config.roundup_power2_divisions.begin(),
                                               config.roundup_power2_divisions.end());
                   })
      .def_ro("without_effect", &AllocatorConfig::without_effect)
      .def("round_request", &AllocatorConfig::round_request, "size"_a)
      .def("segment_size", &AllocatorConfig::segment_size, "rounded"_a);

  module.def("allocator_names", [] {
    return std::vector<std::string>(kAllocatorNames.begin(), kAllocatorNames.end());
  });
  nb::enum_<PoolOption>(module, "PoolOption")
      .value("use_on_oom", PoolOption::use_on_oom)
      .value("no_split", PoolOption::no_split);
}

}  // namespace plimsoll::python
