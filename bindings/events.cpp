#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "columns.h"
#include "module.h"
#include "plimsoll/base/units.h"
#include "plimsoll/events/event.h"
#include "plimsoll/events/segment.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace plimsoll::python {

void bind_events(nb::module_& module) {
  module.def(
      "action_names",
      [] {
        std::vector<std::string> names;
        for (std::size_t code = 0; code < kActionCount; ++code) {
          names.emplace_back(to_string(static_cast<Action>(code)));
        }
        return names;
      },
      "The names of the actions, by code.");

  nb::class_<RecordedColumns>(module, "Columns")
      .def(nb::init<Column<std::uint8_t>, Column<Address>, Column<Bytes>, Column<StreamId>,
                    Column<std::uint64_t>, Column<std::uint64_t>>(),
           "action"_a, "address"_a, "size"_a, "stream"_a, "pool_first"_a, "pool_second"_a,
           nb::sig("def __init__(self, action: numpy.ndarray, address: numpy.ndarray, "
                   "size: numpy.ndarray, stream: numpy.ndarray, pool_first: numpy.ndarray, "
                   "pool_second: numpy.ndarray) -> None"));

  nb::class_<PoolId>(module, "PoolId")
      .def(nb::init<std::uint64_t, std::uint64_t>(), "first"_a = 0, "second"_a = 0)
      .def_ro("first", &PoolId::first)
      .def_ro("second", &PoolId::second);

  nb::class_<BlockInfo>(module, "BlockInfo")
      .def(
          "__init__",
          [](BlockInfo* self, Address address, Bytes size, Bytes requested,
             const std::string& state, std::uint32_t context) {
            const std::optional<BlockState> value = parse_block_state(state);
            if (!value) throw std::invalid_argument("unknown state of a block: '" + state + "'");
            new (self) BlockInfo{address, size, requested, *value, context};
          },
          "address"_a, "size"_a, "requested"_a, "state"_a, "context"_a = 0)
      .def_ro("address", &BlockInfo::address)
      .def_ro("shared", &BlockInfo::shared)
      .def_ro("size", &BlockInfo::size)
      .def_ro("requested", &BlockInfo::requested)
      .def_prop_ro("state",
                   [](const BlockInfo& block) { return std::string(to_string(block.state)); })
      .def_ro("context", &BlockInfo::context);

  nb::class_<SegmentInfo>(module, "SegmentInfo")
      .def(
          "__init__",
          [](SegmentInfo* self, Address address, Bytes total_size, StreamId stream, PoolId pool,
             bool small, bool expandable, std::uint32_t context, std::vector<BlockInfo> blocks) {
            new (self) SegmentInfo{address, total_size, stream,  pool,
                                   small,   expandable, context, std::move(blocks)};
          },
          "address"_a, "total_size"_a, "stream"_a, "pool"_a, "small"_a, "expandable"_a, "context"_a,
          "blocks"_a)
      .def_ro("address", &SegmentInfo::address)
      .def_ro("shared", &SegmentInfo::shared)
      .def_ro("paused", &SegmentInfo::paused)
      .def_ro("total_size", &SegmentInfo::total_size)
      .def_ro("stream", &SegmentInfo::stream)
      .def_ro("pool", &SegmentInfo::pool)
      .def_ro("small", &SegmentInfo::small)
      .def_ro("expandable", &SegmentInfo::expandable)
      .def_ro("context", &SegmentInfo::context)
      .def_ro("blocks", &SegmentInfo::blocks);
}

}  // namespace plimsoll::python
