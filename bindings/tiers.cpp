// What Python asks of an engine's two tiers. A live engine and a simulated one answer alike, so all
// that is built on them works on a GPU and without one.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "conversions.h"
#include "plimsoll/allocator/elastic/elastic.h"
#include "plimsoll/engine/tiers.h"

namespace plimsoll::python {

// Binds them to an engine's class. `Guard` is held around each call.
template <typename Engine, typename Guard>
void bind_tiers(nanobind::class_<Engine>& type) {
  namespace nb = nanobind;
  using namespace nb::literals;
  using Guarded = nb::call_guard<Guard>;
  const auto pair_of = [](MemoryInfo info) { return std::pair(info.free, info.total); };
  type.def_prop_rw("limit", &Engine::limit, &Engine::set_limit, nb::for_getter(Guarded()),
                   nb::for_setter(Guarded()), nb::for_setter(nb::arg("limit").none()));
  type.def("set_dedicated_limit", &Engine::set_dedicated_limit, "limit"_a.none(), Guarded(),
           "What the person allows, whatever fraction the program sets.");
  type.def(
      "statistics",
      [](Engine& engine, bool tiers) {
        Statistics statistics;
        {
          const Guard guard;
          statistics = engine.statistics();
        }
        return statistics_dict(statistics, engine.version(), tiers);
      },
      "tiers"_a = true, nb::sig("def statistics(self, tiers: bool = True) -> dict[str, int]"),
      "PyTorch's counters, and those of shared and paused memory.");
  type.def(
      "memory_info", [=](Engine& engine) { return pair_of(engine.driver().memory_info()); },
      Guarded(), "(free, total) of the card's own memory.");
  type.def(
      "shared_info", [=](Engine& engine) { return pair_of(engine.driver().shared_info()); },
      Guarded(), "(free, total) of the host memory that GPUs may use.");
  type.def("segments", &Engine::segments, Guarded());
  type.def(
      "fragments_bytes", [](Engine& engine) { return engine.elastic().fragments(); }, Guarded(),
      "Of the elastic allocator: free, and bound to where it lies; None if too many blocks are.");
  type.def_prop_rw(
      "spills",
      [](Engine& engine) { return engine.elastic().spill_policy() == SpillPolicy::spill; },
      [](Engine& engine, bool spills) {
        engine.elastic().set_spill_policy(spills ? SpillPolicy::spill : SpillPolicy::strict);
      },
      nb::for_getter(Guarded()), nb::for_setter(Guarded()));
  type.def_prop_rw(
      "shared_limit", [](Engine& engine) { return engine.elastic().shared_limit(); },
      [](Engine& engine, std::optional<Bytes> limit) { engine.elastic().set_shared_limit(limit); },
      nb::for_getter(Guarded()), nb::for_setter(Guarded()),
      nb::for_setter(nb::arg("limit").none()));
  type.def(
      "on_first_spill",
      [](Engine& engine, nb::callable told) {
        // Tensors die after everything else in Python, so what is told stays for good.
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
      },
      "told"_a,
      nb::sig("def on_first_spill(self, told: collections.abc.Callable[[int], None]) -> None"));
  type.def_prop_ro(
      "dedicated_allocated_bytes",
      [](Engine& engine) {
        const Statistics statistics = engine.statistics();
        const Stat& all = statistics.allocated_bytes.all;
        const std::int64_t shared = statistics.shared_allocated_bytes.current;
        return std::tuple(all.current - shared, all.peak - shared, all.allocated);
      },
      nb::for_getter(Guarded()),
      "Now, at the peak and in all the time; without what is in shared memory now, but for the "
      "last.");
  type.def_prop_ro(
      "shared_allocated_bytes",
      [](Engine& engine) { return engine.statistics().shared_allocated_bytes.current; },
      nb::for_getter(Guarded()));
  type.def(
      "rebalance",
      [](Engine& engine, std::optional<Bytes> most) {
        return engine.elastic().rebalance(most.value_or(std::numeric_limits<Bytes>::max()));
      },
      "most"_a.none() = nb::none(), Guarded(), "Returns the bytes that moved.");
  type.def(
      "pause",
      [](Engine& engine, RegionId region, bool keep, std::optional<int> file) {
        Backup backup;
        if (keep) backup.pool = &engine.host_pool();
        if (keep && file) backup.store = engine.store_in(*file);
        return engine.elastic().pause(region, std::move(backup));
      },
      "region"_a, "keep"_a, "file"_a.none() = nb::none(), Guarded(),
      "To page-locked memory, a file or, if the content is not to be kept, nowhere. Returns the "
      "bytes that the card got back.");
  type.def(
      "resume", [](Engine& engine, RegionId region) { return engine.elastic().resume(region); },
      "region"_a, Guarded(), "Returns the bytes that the card gave.");
  type.def(
      "is_paused",
      [](Engine& engine, RegionId region) { return engine.elastic().is_paused(region); },
      "region"_a, Guarded());
  type.def(
      "region_use",
      [](Engine& engine, RegionId region) {
        std::optional<RegionUse> use;
        {
          const Guard guard;
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
      },
      "region"_a, nb::sig("def region_use(self, region: int) -> dict[str, int]"));
  type.def("host_reserved_bytes", &Engine::host_reserved_bytes, Guarded(),
           "Page-locked memory that is held for copies.");
}

}  // namespace plimsoll::python
