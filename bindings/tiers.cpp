// Python bindings for an allocator's two tiers: the card's memory, and shared host memory.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "call_guard.h"
#include "conversions.h"
#include "module.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace plimsoll::python {
namespace {

using Sizes = std::pair<Bytes, Bytes>;
Sizes pair_of(MemoryInfo info) { return {info.free, info.total}; }

// Makes the engine call `told` when a request first gets shared memory because the card is full.
// The callback is never released, because tensors may outlive everything else in Python.
void tell_first_spill(Engine& engine, nb::callable told) {
  SpillWatch& watch = engine.spill_watch();
  watch.set([held = told.release()](Bytes size) {
    if (!nb::is_alive()) return;
    const nb::gil_scoped_acquire acquired;
    try {
      held(size);
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("plimsoll's warning of a spill");
    }
  });
}

nb::dict statistics_of(Engine& engine, bool tiers) {
  Statistics statistics;
  {
    const CallGuard guard(engine);
    statistics = engine.statistics();
  }
  return statistics_dict(statistics, engine.version(), tiers);
}

std::tuple<std::int64_t, std::int64_t, std::int64_t> dedicated_allocated(Engine& engine) {
  const Statistics statistics = engine.statistics();
  const Stat& all = statistics.allocated_bytes.all;
  const std::int64_t shared = statistics.shared_allocated_bytes.current;
  return {all.current - shared, all.peak - shared, all.allocated};
}

Bytes pause(Engine& engine, RegionId region, bool keep, std::optional<int> file) {
  Backup backup;
  if (keep) backup.pool = &engine.host_pool();
  if (keep && file) backup.store = engine.store_in(*file);
  return engine.elastic().pause(region, std::move(backup));
}

nb::dict region_use(Engine& engine, RegionId region) {
  std::optional<RegionUse> use;
  {
    const CallGuard guard(engine);
    use = engine.elastic().region_use(region);
  }
  nb::dict result;
  if (use) {
    result["reserved_bytes"] = use->reserved;
    result["allocated_bytes"] = use->allocated;
    result["shared_reserved_bytes"] = use->shared_reserved;
    result["paused_bytes"] = use->paused;
  }
  return result;
}

}  // namespace

void bind_tiers(nb::class_<Engine>& engine_class) {
  using Limit = std::optional<Bytes>;
  engine_class
      .def_prop_rw("limit", guarded(+[](Engine& engine) { return engine.limit(); }),
                   guarded(+[](Engine& engine, Limit limit) { engine.set_limit(limit); }),
                   nb::for_setter("limit"_a.none()))
      .def("set_fraction",
           guarded(+[](Engine& engine, double fraction) { engine.set_fraction(fraction); }),
           "fraction"_a, "As torch.cuda.set_per_process_memory_fraction.")
      .def("set_dedicated_limit",
           guarded(+[](Engine& engine, Limit limit) { engine.set_dedicated_limit(limit); }),
           "limit"_a.none(), "What the person allows, whatever fraction the program sets.")
      .def("statistics", &statistics_of, "tiers"_a = true,
           nb::sig("def statistics(self, tiers: bool = True) -> dict[str, int]"),
           "PyTorch's counters, and those of shared and paused memory.")
      .def("memory_info",
           guarded(+[](Engine& engine) { return pair_of(engine.driver().memory_info()); }),
           "(free, total) of the card's own memory.")
      .def("shared_info",
           guarded(+[](Engine& engine) { return pair_of(engine.driver().shared_info()); }),
           "(free, total) of the host memory that GPUs may use.")
      .def("segments", guarded(+[](Engine& engine) { return engine.segments(); }))
      .def("fragments_bytes", guarded(+[](Engine& engine) { return engine.elastic().fragments(); }),
           "Of the elastic allocator: free, and bound to where it lies; None if too many blocks "
           "are.")
      .def_prop_rw(
          "spills", guarded(+[](Engine& engine) {
            return engine.elastic().spill_policy() == SpillPolicy::spill;
          }),
          guarded(+[](Engine& engine, bool spills) {
            engine.elastic().set_spill_policy(spills ? SpillPolicy::spill : SpillPolicy::strict);
          }))
      .def_prop_rw(
          "shared_limit", guarded(+[](Engine& engine) { return engine.elastic().shared_limit(); }),
          guarded(+[](Engine& engine, Limit limit) { engine.elastic().set_shared_limit(limit); }),
          nb::for_setter("limit"_a.none()))
      .def("on_first_spill", &tell_first_spill, "told"_a,
           nb::sig("def on_first_spill(self, told: collections.abc.Callable[[int], None]) -> None"))
      .def_prop_ro("dedicated_allocated_bytes", guarded(&dedicated_allocated),
                   "Now, at the peak and in all the time; without what is in shared memory now, "
                   "but for the last.")
      .def_prop_ro("shared_allocated_bytes", guarded(+[](Engine& engine) {
                     return engine.statistics().shared_allocated_bytes.current;
                   }))
      .def("rebalance", guarded(+[](Engine& engine, Limit most) {
             return engine.elastic().rebalance(most.value_or(std::numeric_limits<Bytes>::max()));
           }),
           "most"_a.none() = nb::none(), "Returns the bytes that moved.")
      .def("require_pausable", guarded(+[](Engine& engine, RegionId region) {
             engine.elastic().require_pausable(region);
           }),
           "region"_a, "Raises ValueError if `pause` would refuse, whatever memory there is.")
      .def("pause", guarded(&pause), "region"_a, "keep"_a, "file"_a.none() = nb::none(),
           "To page-locked memory, a file or, if the content is not to be kept, nowhere. Returns "
           "the bytes that the card got back.")
      .def("resume", guarded(+[](Engine& engine, RegionId region) {
             return engine.elastic().resume(region);
           }),
           "region"_a, "Returns the bytes that the card gave.")
      .def("is_paused", guarded(+[](Engine& engine, RegionId region) {
             return engine.elastic().is_paused(region);
           }),
           "region"_a)
      .def("region_use", &region_use, "region"_a,
           nb::sig("def region_use(self, region: int) -> dict[str, int]"))
      .def_prop_ro("may_spill", &Engine::may_spill)
      .def_prop_ro("peak_dedicated", &Engine::peak_dedicated)
      .def("host_reserved_bytes",
           guarded(+[](Engine& engine) { return engine.host_reserved_bytes(); }),
           "Page-locked memory that is held for copies.");
}

}  // namespace plimsoll::python
