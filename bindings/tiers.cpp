#include "plimsoll/engine/tiers.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "conversions.h"
#include "module.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace plimsoll::python {
namespace {

// Held around each call. Where that may wait, the rest of the program goes on meanwhile.
class CallGuard {
 public:
  explicit CallGuard(TieredEngine& engine) {
    if (engine.waits()) released_.emplace();
    exclusive_ = engine.exclude_calls();
  }

 private:
  std::optional<nb::gil_scoped_release> released_;
  std::unique_lock<std::recursive_mutex> exclusive_;
};

template <typename Result, typename... Arguments>
auto guarded(Result (*function)(TieredEngine&, Arguments...)) {
  return [function](TieredEngine& engine, Arguments... arguments) {
    const CallGuard guard(engine);
    return function(engine, std::move(arguments)...);
  };
}

using Sizes = std::pair<Bytes, Bytes>;
Sizes pair_of(MemoryInfo info) { return {info.free, info.total}; }

// Tensors die after everything else in Python, so what is told stays for good.
void tell_first_spill(TieredEngine& engine, nb::callable told) {
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

nb::dict statistics_of(TieredEngine& engine, bool tiers) {
  Statistics statistics;
  {
    const CallGuard guard(engine);
    statistics = engine.statistics();
  }
  return statistics_dict(statistics, engine.version(), tiers);
}

std::tuple<std::int64_t, std::int64_t, std::int64_t> dedicated_allocated(TieredEngine& engine) {
  const Statistics statistics = engine.statistics();
  const Stat& all = statistics.allocated_bytes.all;
  const std::int64_t shared = statistics.shared_allocated_bytes.current;
  return {all.current - shared, all.peak - shared, all.allocated};
}

Bytes pause(TieredEngine& engine, RegionId region, bool keep, std::optional<int> file) {
  Backup backup;
  if (keep) backup.pool = &engine.host_pool();
  if (keep && file) backup.store = engine.store_in(*file);
  return engine.elastic().pause(region, std::move(backup));
}

nb::dict region_use(TieredEngine& engine, RegionId region) {
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

void bind_tiers(nb::module_& module) {
  using Limit = std::optional<Bytes>;
  module.def(
      "region_pool",
      [](RegionId region) {
        const PoolId pool = ElasticPool::id_of(region);
        return std::pair(pool.first, pool.second);
      },
      "region"_a, "The id of the pool that a region is, for a graph to be captured into.");
  nb::class_<TieredEngine>(
      module, "TieredEngine",
      "What an engine is asked about its two tiers, a live or a simulated one.")
      .def_prop_rw("limit", guarded(+[](TieredEngine& engine) { return engine.limit(); }),
                   guarded(+[](TieredEngine& engine, Limit limit) { engine.set_limit(limit); }),
                   nb::for_setter("limit"_a.none()))
      .def("set_dedicated_limit",
           guarded(+[](TieredEngine& engine, Limit limit) { engine.set_dedicated_limit(limit); }),
           "limit"_a.none(), "What the person allows, whatever fraction the program sets.")
      .def("statistics", &statistics_of, "tiers"_a = true,
           nb::sig("def statistics(self, tiers: bool = True) -> dict[str, int]"),
           "PyTorch's counters, and those of shared and paused memory.")
      .def("memory_info",
           guarded(+[](TieredEngine& engine) { return pair_of(engine.driver().memory_info()); }),
           "(free, total) of the card's own memory.")
      .def("shared_info",
           guarded(+[](TieredEngine& engine) { return pair_of(engine.driver().shared_info()); }),
           "(free, total) of the host memory that GPUs may use.")
      .def("segments", guarded(+[](TieredEngine& engine) { return engine.segments(); }))
      .def("fragments_bytes",
           guarded(+[](TieredEngine& engine) { return engine.elastic().fragments(); }),
           "Of the elastic allocator: free, and bound to where it lies; None if too many blocks "
           "are.")
      .def_prop_rw(
          "spills", guarded(+[](TieredEngine& engine) {
            return engine.elastic().spill_policy() == SpillPolicy::spill;
          }),
          guarded(+[](TieredEngine& engine, bool spills) {
            engine.elastic().set_spill_policy(spills ? SpillPolicy::spill : SpillPolicy::strict);
          }))
      .def_prop_rw("shared_limit",
                   guarded(+[](TieredEngine& engine) { return engine.elastic().shared_limit(); }),
                   guarded(+[](TieredEngine& engine, Limit limit) {
                     engine.elastic().set_shared_limit(limit);
                   }),
                   nb::for_setter("limit"_a.none()))
      .def("on_first_spill", &tell_first_spill, "told"_a,
           nb::sig("def on_first_spill(self, told: collections.abc.Callable[[int], None]) -> None"))
      .def_prop_ro("dedicated_allocated_bytes", guarded(&dedicated_allocated),
                   "Now, at the peak and in all the time; without what is in shared memory now, "
                   "but for the last.")
      .def_prop_ro("shared_allocated_bytes", guarded(+[](TieredEngine& engine) {
                     return engine.statistics().shared_allocated_bytes.current;
                   }))
      .def("rebalance", guarded(+[](TieredEngine& engine, Limit most) {
             return engine.elastic().rebalance(most.value_or(std::numeric_limits<Bytes>::max()));
           }),
           "most"_a.none() = nb::none(), "Returns the bytes that moved.")
      .def("require_pausable", guarded(+[](TieredEngine& engine, RegionId region) {
             engine.elastic().require_pausable(region);
           }),
           "region"_a, "Raises ValueError if `pause` would refuse, whatever memory there is.")
      .def("pause", guarded(&pause), "region"_a, "keep"_a, "file"_a.none() = nb::none(),
           "To page-locked memory, a file or, if the content is not to be kept, nowhere. Returns "
           "the bytes that the card got back.")
      .def("resume", guarded(+[](TieredEngine& engine, RegionId region) {
             return engine.elastic().resume(region);
           }),
           "region"_a, "Returns the bytes that the card gave.")
      .def("is_paused", guarded(+[](TieredEngine& engine, RegionId region) {
             return engine.elastic().is_paused(region);
           }),
           "region"_a)
      .def("region_use", &region_use, "region"_a,
           nb::sig("def region_use(self, region: int) -> dict[str, int]"))
      .def("check_invariants",
           guarded(+[](TieredEngine& engine) { engine.elastic().check_invariants(); }),
           "Raises RuntimeError if the elastic allocator's books do not agree; for tests.")
      .def("host_reserved_bytes",
           guarded(+[](TieredEngine& engine) { return engine.host_reserved_bytes(); }),
           "Page-locked memory that is held for copies.");
}

}  // namespace plimsoll::python
