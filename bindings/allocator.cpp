#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "conversions.h"
#include "event_buffer.h"
#include "module.h"
#include "plimsoll/allocator/config.h"
#include "plimsoll/engine/simulated_engine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace plimsoll::python {
namespace {

nb::tuple event_tuple(const TraceEvent& event) {
  return nb::make_tuple(std::string(to_string(event.action)), event.address, event.size,
                        event.stream, event.pool.first, event.pool.second, event.time_us,
                        event.context, event.shared);
}

using Locked = nb::call_guard<EngineGuard>;

}  // namespace

void bind_allocator(nb::module_& module) {
  nb::exception<ConfigError>(module, "ConfigError", PyExc_ValueError);
  nb::exception<UnknownAddress>(module, "UnknownAddress", PyExc_ValueError);
  nb::exception<DriverError>(module, "DriverError", PyExc_RuntimeError);
  nb::exception<OutOfMemory>(module, "OutOfMemory", PyExc_RuntimeError);

  module.attr("OLDEST_VERSION") = kOldestTorch.to_string();
  module.attr("NEWEST_VERSION") = kNewestTorch.to_string();
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
  nb::class_<Engine, TieredEngine>(module, "Engine")
      .def(nb::init<const std::string&, SimulatedDriver&, const std::string&, const std::string&,
                    int>(),
           "allocator"_a, "driver"_a, "conf"_a, "version"_a, "device"_a, nb::keep_alive<1, 3>())
      .def(
          "malloc",
          [](Engine& engine, Bytes size, StreamId stream) {
            Address address = 0;
            {
              const EngineGuard guard;
              address = engine.malloc(size, stream);
            }
            engine.tell_of_spill(size);
            return address;
          },
          "size"_a, "stream"_a)
      .def(
          "malloc_at",
          [](Engine& engine, Address address, Bytes size, StreamId stream, std::uint64_t first,
             std::uint64_t second) {
            engine.by_address.malloc_at(address, size, stream, {first, second});
          },
          "address"_a, "size"_a, "stream"_a, "first"_a, "second"_a, Locked(),
          "Lend exactly these bytes of a pool's free block.")
      .def(
          "free", [](Engine& engine, Address address) { engine.free(address); }, "address"_a,
          Locked())
      .def(
          "record_stream",
          [](Engine& engine, Address address, StreamId stream) {
            engine.allocator->record_stream(engine.by_address.block(address), stream);
          },
          "address"_a, "stream"_a, Locked())
      .def(
          "block_size",
          [](const Engine& engine, Address address) {
            return engine.by_address.block(address)->size;
          },
          "address"_a, Locked())
      .def(
          "empty_cache",
          [](Engine& engine, std::uint64_t first, std::uint64_t second) {
            engine.allocator->empty_cache({first, second});
          },
          "first"_a = 0, "second"_a = 0, Locked())
      .def_prop_ro("handle",
                   [](const Engine& engine) { return reinterpret_cast<std::uintptr_t>(&engine); })
      .def(
          "poll", [](Engine& engine) { engine.allocator->poll(); }, Locked())
      .def(
          "begin_allocate_to_pool",
          [](Engine& engine, std::uint64_t first, std::uint64_t second,
             std::optional<StreamId> stream) {
            engine.allocator->begin_allocate_to_pool({first, second}, Allocator::only_on(stream));
          },
          "first"_a, "second"_a, "stream"_a.none(), Locked())
      .def(
          "end_allocate_to_pool",
          [](Engine& engine, std::uint64_t first, std::uint64_t second) {
            engine.allocator->end_allocate_to_pool({first, second});
          },
          "first"_a, "second"_a, Locked())
      .def(
          "begin_graph_capture", [](Engine& engine) { engine.allocator->begin_graph_capture(); },
          Locked())
      .def(
          "end_graph_capture", [](Engine& engine) { engine.allocator->end_graph_capture(); },
          Locked())
      .def(
          "use_pool",
          [](Engine& engine, std::uint64_t first, std::uint64_t second) {
            engine.allocator->use_pool({first, second});
          },
          "first"_a, "second"_a, Locked())
      .def(
          "release_pool",
          [](Engine& engine, std::uint64_t first, std::uint64_t second) {
            engine.allocator->release_pool({first, second});
          },
          "first"_a, "second"_a, Locked())
      .def(
          "set_pool_option",
          [](Engine& engine, std::uint64_t first, std::uint64_t second, PoolOption option,
             bool on) { engine.allocator->set_pool_option({first, second}, option, on); },
          "first"_a, "second"_a, "option"_a, "on"_a, Locked())
      .def_prop_ro("may_spill", &Engine::may_spill)
      .def_prop_ro("peak_dedicated",
                   [](const Engine& engine) { return engine.tiers.peak_dedicated(); })
      .def(
          "reset_peak_statistics",
          [](Engine& engine) {
            engine.allocator->reset_peak_statistics();
            engine.tiers.reset_peak();
          },
          Locked())
      .def(
          "reset_accumulated_statistics",
          [](Engine& engine) {
            engine.allocator->reset_accumulated_statistics();
            engine.tiers.reset_accumulated();
          },
          Locked())
      .def(
          "check_invariants", [](const Engine& engine) { engine.allocator->check_invariants(); },
          Locked())
      .def(
          "record",
          [](Engine& engine, RecordingBuffer* buffer) {
            engine.allocator->set_observer(
                buffer == nullptr ? nullptr : &buffer->observer(engine.allocator->device()));
            engine.recording = buffer == nullptr ? nullptr : &buffer->events();
          },
          "buffer"_a.none(), Locked(), "Add every event from now on to a buffer, or to none.")
      .def(
          "record_history",
          [](Engine& engine, std::size_t max_entries) {
            engine.allocator->history().record_up_to(max_entries);
          },
          "max_entries"_a, Locked())
      .def(
          "history",
          [](const Engine& engine) {
            nb::list events;
            const History& history = engine.allocator->history();
            for (std::size_t i = 0; i < history.size(); ++i) {
              events.append(event_tuple(history[i]));
            }
            return events;
          },
          Locked(),
          nb::sig("def history(self) -> "
                  "list[tuple[str, int, int, int, int, int, int, int, int]]"))
      .def(
          "history_columns",
          [](const Engine& engine) {
            const EngineGuard guard;
            const History& history = engine.allocator->history();
            const auto column = [&]<typename T>(T TraceEvent::* member) {
              auto* const values = new std::vector<T>(history.size());
              for (std::size_t i = 0; i < values->size(); ++i) (*values)[i] = history[i].*member;
              const nb::capsule owner(
                  values, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
              return view(*values, owner);
            };
            auto* const actions = new std::vector<std::uint8_t>(history.size());
            for (std::size_t i = 0; i < actions->size(); ++i) {
              (*actions)[i] = static_cast<std::uint8_t>(history[i].action);
            }
            const nb::capsule owner(actions, [](void* p) noexcept {
              delete static_cast<std::vector<std::uint8_t>*>(p);
            });
            return nb::make_tuple(view(*actions, owner), column(&TraceEvent::address),
                                  column(&TraceEvent::size), column(&TraceEvent::stream),
                                  column(&TraceEvent::time_us), column(&TraceEvent::context),
                                  column(&TraceEvent::shared));
          },
          nb::sig("def history_columns(self) -> tuple[numpy.typing.NDArray[numpy.uint8], "
                  "numpy.typing.NDArray[numpy.uint64], numpy.typing.NDArray[numpy.uint64], "
                  "numpy.typing.NDArray[numpy.uint64], numpy.typing.NDArray[numpy.int64], "
                  "numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.uint64]]"),
          "Action codes, addresses, sizes, streams, times, contexts and bytes in shared memory, of "
          "the history.")
      .def_prop_ro("history_size",
                   [](const Engine& engine) { return engine.allocator->history().size(); })
      .def_prop_ro("history_dropped",
                   [](const Engine& engine) { return engine.allocator->history().dropped(); })
      .def(
          "set_context",
          [](Engine& engine, std::uint32_t context) { engine.allocator->set_context(context); },
          "context"_a, Locked())
      .def("note_snapshot", [](Engine& engine) { engine.allocator->note_snapshot(); }, Locked());
}

}  // namespace plimsoll::python
