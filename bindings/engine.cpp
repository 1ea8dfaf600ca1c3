#include "plimsoll/engine/engine.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "call_guard.h"
#include "conversions.h"
#include "event_buffer.h"
#include "module.h"
#include "plan_use.h"
#include "plimsoll/driver/cuda.h"
#include "plimsoll/driver/locked.h"
#include "plimsoll/engine/process_engines.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace plimsoll::python {
namespace {

// --- construction ------------------------------------------------------------------------------

Engine::Options options_of(const std::string& allocator, const std::string& conf,
                           const std::string& version, int device, bool account = false,
                           std::uintptr_t wheel = 0) {
  return {allocator, conf,    TorchVersion::parse(version),
          device,    account, reinterpret_cast<const plimsoll_wheel_api*>(wheel)};
}

void make_on_gpu(Engine* place, const std::string& allocator, SimulatedDriver& gpu,
                 const std::string& conf, const std::string& version, int device,
                 std::uintptr_t wheel) {
  new (place) Engine(gpu, options_of(allocator, conf, version, device, false, wheel));
}

Engine* make_cuda(const std::string& allocator, const std::string& conf, const std::string& version,
                  int device, bool account) {
  return &ProcessEngines::add(std::make_unique<Engine>(
      std::make_unique<CudaDriver>(device), options_of(allocator, conf, version, device, account)));
}

Engine* make_simulated(nb::handle gpu, const std::string& allocator, const std::string& conf,
                       const std::string& version, int device, bool account) {
  auto engine =
      std::make_unique<Engine>(std::make_unique<LockedDriver>(nb::cast<SimulatedDriver&>(gpu)),
                               options_of(allocator, conf, version, device, account));
  gpu.inc_ref();  // keeps the GPU alive for good, because the engine is never destroyed
  return &ProcessEngines::add(std::move(engine));
}

// --- memory ------------------------------------------------------------------------------------

// Allocates a block. Releases the interpreter's lock, because a request that spills into host
// memory may call Python.
Address allocate(Engine& engine, Bytes size, StreamId stream) {
  if (size == 0) throw std::invalid_argument("a block has at least one byte");
  const WaitGuard guard(engine);
  return engine.allocate(size, stream);
}

void require(bool found, Address address) {
  if (!found) throw UnknownAddress(address);
}

Bytes block_size(Engine& engine, Address address) {
  const std::optional<Bytes> size = engine.block_size(address);
  require(size.has_value(), address);
  return *size;
}

using Number = std::uint64_t;  // half of a pool's id

// Empties the cache. Releases the interpreter's lock, because a pool's own allocator may call
// Python.
void empty_cache(Engine& engine, Number first, Number second) {
  const WaitGuard guard(engine);
  engine.empty_cache({first, second});
}

void set_pool_source(Engine& engine, Number first, Number second, std::uintptr_t give,
                     std::uintptr_t take_back) {
  engine.set_pool_source({first, second}, reinterpret_cast<PoolSource::Give>(give),
                         reinterpret_cast<PoolSource::TakeBack>(take_back));
}

void begin_allocate_to_pool(Engine& engine, Number first, Number second,
                            std::optional<StreamId> stream) {
  engine.hold()->begin_allocate_to_pool({first, second}, Allocator::only_on(stream));
}

// --- statistics and events ---------------------------------------------------------------------

void record(Engine& engine, RecordingBuffer* buffer) {
  engine.listen(buffer == nullptr ? nullptr : buffer->observer(engine.device()));
}

nb::tuple event_tuple(const TraceEvent& event) {
  return nb::make_tuple(std::string(to_string(event.action)), event.address, event.size,
                        event.stream, event.pool.first, event.pool.second, event.time_us,
                        event.context, event.shared);
}

// Returns a copy of the history. Reading the history itself while Python objects are built from it
// is not safe: the garbage collector may run and free tensors, which adds events to the history.
std::vector<TraceEvent> copy_history(Engine& engine) {
  const Engine::Held held = engine.hold();
  const History& history = held->history();
  std::vector<TraceEvent> events;
  events.reserve(history.size());
  for (std::size_t i = 0; i < history.size(); ++i) events.push_back(history[i]);
  return events;
}

nb::list history_of(Engine& engine) {
  nb::list events;
  for (const TraceEvent& event : copy_history(engine)) events.append(event_tuple(event));
  return events;
}

nb::tuple history_columns(Engine& engine) {
  const std::vector<TraceEvent> events = copy_history(engine);
  const auto column = [&]<typename T>(T TraceEvent::* member) {
    std::vector<T> values;
    values.reserve(events.size());
    for (const TraceEvent& event : events) values.push_back(event.*member);
    return owned_view(std::move(values));
  };
  std::vector<std::uint8_t> actions;
  actions.reserve(events.size());
  for (const TraceEvent& event : events) {
    actions.push_back(static_cast<std::uint8_t>(event.action));
  }
  return nb::make_tuple(owned_view(std::move(actions)), column(&TraceEvent::address),
                        column(&TraceEvent::size), column(&TraceEvent::stream),
                        column(&TraceEvent::time_us), column(&TraceEvent::context),
                        column(&TraceEvent::shared));
}

nb::dict account_of(Engine& engine) {
  Engine::Account account;
  {
    const nb::gil_scoped_release released;  // `account` waits for another thread (shadow.h)
    account = engine.account();
  }
  nb::dict result;
  result["driver"] = std::string(engine.driver().name());
  result["peak_allocated_bytes"] = account.peak_allocated;
  result["peak_reserved_bytes"] = account.peak_reserved;
  result["peak_shared_reserved_bytes"] = account.peak_shared_reserved;
  result["card_peak_bytes"] = account.card_peak;
  result["card_total_bytes"] = account.card_total;
  result["num_device_alloc"] = account.num_device_alloc;
  result["num_device_free"] = account.num_device_free;
  result["num_alloc_retries"] = account.num_alloc_retries;
  result["num_ooms"] = account.num_ooms;
  const std::optional<ShadowResult>& torch = account.torch;
  const auto of_torch = [&](const char* name, auto value) {
    result[name] = torch ? nb::cast(value(*torch)) : nb::none();
  };
  of_torch("torch_events", [](const ShadowResult& shadow) { return shadow.events; });
  of_torch("torch_peak_reserved_bytes",
           [](const ShadowResult& shadow) { return shadow.peak_reserved; });
  of_torch("torch_num_alloc_retries",
           [](const ShadowResult& shadow) { return shadow.num_alloc_retries; });
  of_torch("torch_num_ooms", [](const ShadowResult& shadow) { return shadow.num_ooms; });
  of_torch("torch_first_failure", [](const ShadowResult& shadow) -> std::optional<std::string> {
    if (!shadow.first_failure) return std::nullopt;
    return OutOfMemory(*shadow.first_failure).what();
  });
  of_torch("torch_stopped", [](const ShadowResult& shadow) -> std::optional<std::string> {
    if (shadow.stopped.empty()) return std::nullopt;
    return shadow.stopped;
  });
  return result;
}

void bind_making(nb::class_<Engine>& engine) {
  engine
      .def("__init__", &make_on_gpu, "allocator"_a, "driver"_a, "conf"_a, "version"_a, "device"_a,
           "wheel"_a = 0, nb::keep_alive<1, 3>(),
           "On a simulated GPU, which others may use too. `wheel` is the address of a\n"
           "plimsoll_wheel_api: PyTorch's own allocator, which then serves as \"native\".")
      .def_static("cuda", &make_cuda, "allocator"_a, "conf"_a, "version"_a, "device"_a, "account"_a,
                  nb::rv_policy::reference,
                  "One of this process's engines, which are never destroyed.")
      .def_static("simulated", &make_simulated, "driver"_a, "allocator"_a, "conf"_a, "version"_a,
                  "device"_a, "account"_a, nb::rv_policy::reference,
                  nb::sig("def simulated(driver: SimulatedDriver, allocator: str, conf: str, "
                          "version: str, device: int, account: bool) -> Engine"),
                  "As `cuda`, over a simulated GPU.")
      .def("set_plan", guarded(+[](Engine& self, std::shared_ptr<ProgramPlan> plan) {
             self.elastic().set_plan(std::move(plan));
           }),
           "plan"_a,
           "Makes the elastic allocator place large requests as the plan says; call it before the "
           "first "
           "request.")
      .def_prop_ro(
          "plan_use", [](Engine& self) { return plan_uses(self.elastic()); },
          nb::sig(kPlanUseSignature))
      .def_prop_ro("handle", [](Engine& self) { return reinterpret_cast<std::uintptr_t>(&self); })
      .def_prop_ro("fell_back", &Engine::fell_back);
}

void bind_memory(nb::class_<Engine>& engine) {
  engine
      .def("allocate", &allocate, "size"_a, "stream"_a,
           "The address of a block for work on that stream; raises OutOfMemory with PyTorch's "
           "text.")
      .def(
          "allocate_at",
          guarded(+[](Engine& self, Address address, Bytes size, StreamId stream, Number first,
                      Number second) { self.allocate_at(address, size, stream, {first, second}); }),
          "address"_a, "size"_a, "stream"_a, "first"_a, "second"_a,
          "Lend exactly these bytes of a pool's free block.")
      .def("free",
           guarded(+[](Engine& self, Address address) { require(self.free(address), address); }),
           "address"_a,
           "Work that is queued on the block's stream, and on those recorded, may still use it.")
      .def("record_stream", guarded(+[](Engine& self, Address address, StreamId stream) {
             require(self.record_stream(address, stream), address);
           }),
           "address"_a, "stream"_a,
           "Another stream than its own uses the block: what is queued there by the time of its "
           "`free`.")
      .def("block_size", guarded(&block_size), "address"_a)
      .def("empty_cache", &empty_cache, "first"_a = 0, "second"_a = 0)
      .def("empty_host_cache", guarded(+[](Engine& self) { self.host_pool().empty_cache(); }),
           "Of page-locked memory, which the process's engines share.")
      .def("poll", guarded(+[](Engine& self) { self.hold()->poll(); }))
      .def("begin_allocate_to_pool", guarded(&begin_allocate_to_pool), "first"_a, "second"_a,
           "stream"_a.none())
      .def("end_allocate_to_pool", guarded(+[](Engine& self, Number first, Number second) {
             self.hold()->end_allocate_to_pool({first, second});
           }),
           "first"_a, "second"_a)
      .def("begin_graph_capture",
           guarded(+[](Engine& self) { self.hold()->begin_graph_capture(); }))
      .def("end_graph_capture", guarded(+[](Engine& self) { self.hold()->end_graph_capture(); }))
      .def("use_pool", guarded(+[](Engine& self, Number first, Number second) {
             self.hold()->use_pool({first, second});
           }),
           "first"_a, "second"_a)
      .def("release_pool", guarded(+[](Engine& self, Number first, Number second) {
             self.release_pool({first, second});
           }),
           "first"_a, "second"_a)
      .def("set_pool_option",
           guarded(+[](Engine& self, Number first, Number second, PoolOption option, bool on) {
             self.set_pool_option({first, second}, option, on);
           }),
           "first"_a, "second"_a, "option"_a, "on"_a)
      .def("set_pool_source", guarded(&set_pool_source), "first"_a, "second"_a, "give"_a,
           "take_back"_a,
           "C functions of these addresses give and take a pool's segments: those of a\n"
           "torch.cuda.memory.CUDAPluggableAllocator.")
      .def("configure",
           guarded(+[](Engine& self, const std::string& settings) { self.configure(settings); }),
           "settings"_a,
           "Make settings on top of those before, as torch.cuda.memory._set_allocator_settings.");
}

void bind_telling(nb::class_<Engine>& engine) {
  engine.def("reset_peak_statistics", guarded(+[](Engine& self) { self.reset_peak_statistics(); }))
      .def("reset_accumulated_statistics",
           guarded(+[](Engine& self) { self.reset_accumulated_statistics(); }))
      .def("check_invariants", guarded(+[](Engine& self) { self.hold()->check_invariants(); }),
           "Raises RuntimeError if the allocator's books do not agree; for tests.")
      .def("record", guarded(&record), "buffer"_a.none(),
           "Add every event from now on to a buffer, or to none.")
      .def("record_history", guarded(+[](Engine& self, std::size_t max_entries) {
             self.hold()->history().record_up_to(max_entries);
           }),
           "max_entries"_a)
      .def("history", &history_of,
           nb::sig("def history(self) -> "
                   "list[tuple[str, int, int, int, int, int, int, int, int]]"))
      .def("history_columns", &history_columns,
           nb::sig("def history_columns(self) -> tuple[numpy.typing.NDArray[numpy.uint8], "
                   "numpy.typing.NDArray[numpy.uint64], numpy.typing.NDArray[numpy.uint64], "
                   "numpy.typing.NDArray[numpy.uint64], numpy.typing.NDArray[numpy.int64], "
                   "numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.uint64]]"),
           "Action codes, addresses, sizes, streams, times, contexts and bytes in shared memory, "
           "of the history.")
      .def_prop_ro("history_size", [](Engine& self) { return self.hold()->history().size(); })
      .def_prop_ro("history_dropped", [](Engine& self) { return self.hold()->history().dropped(); })
      .def("set_context",
           guarded(+[](Engine& self, std::uint32_t context) { self.hold()->set_context(context); }),
           "context"_a)
      .def("note_snapshot", guarded(+[](Engine& self) { self.hold()->note_snapshot(); }))
      .def("segments_at_snapshot", guarded(+[](Engine& self) {
             const auto exclusive = self.exclude_calls();
             self.hold()->note_snapshot();
             return self.segments();
           }),
           "Records a `snapshot` event, and returns all segments. On simulated GPUs, no thread\n"
           "allocates or frees in between.")
      .def("account", &account_of, nb::sig("def account(self) -> dict[str, int | str | None]"),
           "What the run came to; `torch_` says what PyTorch's own allocator would have.");
}

}  // namespace

void bind_engine(nb::module_& module) {
  nb::class_<Engine> engine(module, "Engine", "See plimsoll/engine_api.h.");
  bind_making(engine);
  bind_memory(engine);
  bind_telling(engine);
  bind_tiers(engine);
  module.def(
      "set_placement",
      [](std::optional<RegionId> region, bool shared) {
        std::optional<Placement> placement;
        if (region) placement = Placement{*region, shared ? Tier::shared : Tier::dedicated};
        ThisThread::set_placement(placement);
      },
      "region"_a.none(), "shared"_a = false,
      "Where this thread's requests go from now on: to a region, or none (0), preferring shared "
      "memory or not; None ends it.");
  module.def(
      "region_pool",
      [](RegionId region) {
        const PoolId pool = ElasticPool::id_of(region);
        return std::pair(pool.first, pool.second);
      },
      "region"_a, "The id of the pool that a region is, for a graph to be captured into.");
}

}  // namespace plimsoll::python
