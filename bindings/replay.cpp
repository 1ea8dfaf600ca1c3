#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "columns.h"
#include "conversions.h"
#include "module.h"
#include "plan_use.h"
#include "plimsoll/engine/allocators.h"
#include "plimsoll/replay/limit.h"
#include "plimsoll/replay/replayer.h"
#include "plimsoll/replay/start_state.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace plimsoll::python {
namespace {

// One replay: a simulated GPU, an allocator on it, and the events fed so far. If the GPU has shared
// memory, the elastic allocator spills into it by itself. For any other allocator, the driver
// spills, as under Windows.
class Replay {
 public:
  Replay(const std::string& allocator, const std::string& conf, const std::string& version,
         std::optional<Bytes> limit, Bytes gpu_memory, std::optional<Bytes> shared_memory,
         bool compare, Completion completion, std::optional<std::vector<std::uint64_t>> emptied,
         std::size_t device, RecordedAllocator recorded)
      : host_(shared_memory.value_or(0)),
        driver_(host_, gpu_memory,
                shared_memory && allocator != "elastic" ? DriverModel::wddm : DriverModel::linux),
        may_spill_(shared_memory.has_value()),
        version_(TorchVersion::parse(version)),
        emptied_(std::move(emptied)) {
    NamedAllocator made =
        make_allocator(allocator, driver_, conf, version_, static_cast<int>(device));
    elastic_ = made.elastic;
    if (made.elastic != nullptr && shared_memory)
      made.elastic->set_spill_policy(SpillPolicy::spill);
    allocator_ = std::move(made.allocator);
    if (limit) allocator_->set_limit(limit);
    ReplayOptions options;
    options.recorded = recorded;
    options.compare = compare;
    options.completion = completion;
    if (emptied_) options.emptied = &*emptied_;
    replayer_ = std::make_unique<Replayer>(*allocator_, driver_, made.native, options);
  }

  [[nodiscard]] ElasticAllocator& elastic() const {
    if (elastic_ == nullptr) throw nb::value_error("only the elastic allocator follows a plan");
    return *elastic_;
  }

  void restore(const std::vector<SegmentInfo>& segments) { replayer_->restore(segments); }
  void scatter_segments(std::uint64_t seed) { driver_.scatter_allocations(seed); }

  void feed(const RecordedColumns& columns) {
    const EventSpan events = columns.span();
    const nb::gil_scoped_release released;
    const auto poll = [] {
      const nb::gil_scoped_acquire held;
      run_signal_handlers();
    };
    timed([&] { replayer_->feed(events, poll); });
  }
  void finish() {
    timed([&] { replayer_->finish(); });
  }

  [[nodiscard]] const Replayer& replayer() const { return *replayer_; }
  [[nodiscard]] const Allocator& allocator() const { return *allocator_; }
  [[nodiscard]] nb::dict statistics() {
    return statistics_dict(replayer_->tiers().statistics(), version_, may_spill_);
  }
  [[nodiscard]] Bytes peak_dedicated() { return replayer_->tiers().peak_dedicated(); }
  [[nodiscard]] double engine_seconds() const { return engine_seconds_; }
  [[nodiscard]] double driver_seconds() const { return driver_.driver_seconds(); }

 private:
  template <typename Function>
  void timed(Function function) {
    const auto start = std::chrono::steady_clock::now();
    function();
    engine_seconds_ +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  SimulatedHost host_;
  SimulatedDriver driver_;
  bool may_spill_;
  TorchVersion version_;
  std::optional<std::vector<std::uint64_t>> emptied_;
  std::unique_ptr<Allocator> allocator_;
  ElasticAllocator* elastic_ = nullptr;  // null for other allocators
  std::unique_ptr<Replayer> replayer_;
  double engine_seconds_ = 0;
};

nb::object event_or_none(const std::optional<TraceEvent>& event) {
  if (!event) return nb::none();
  return nb::make_tuple(std::string(to_string(event->action)), event->address, event->size);
}

nb::object difference(const Replay& replay) {
  const auto& difference = replay.replayer().first_difference();
  if (!difference) return nb::none();
  return nb::make_tuple(difference->event, event_or_none(difference->recorded),
                        event_or_none(difference->replayed));
}

AllocatorConfig config_of(const std::string& conf, const std::string& version) {
  return AllocatorConfig::parse(conf, TorchVersion::parse(version));
}

}  // namespace

void bind_replay(nb::module_& module) {
  nb::exception<ReplayError>(module, "ReplayError", PyExc_ValueError);

  nb::enum_<Completion>(module, "Completion")
      .value("recorded", Completion::recorded)
      .value("at_once", Completion::at_once)
      .value("late", Completion::late);
  nb::enum_<RecordedAllocator>(module, "RecordedAllocator")
      .value("native", RecordedAllocator::native)
      .value("elastic", RecordedAllocator::elastic)
      .value("uncached", RecordedAllocator::uncached);

  nb::class_<Replay>(module, "Replay")
      .def(nb::init<const std::string&, const std::string&, const std::string&,
                    std::optional<Bytes>, Bytes, std::optional<Bytes>, bool, Completion,
                    std::optional<std::vector<std::uint64_t>>, std::size_t, RecordedAllocator>(),
           "allocator"_a, "conf"_a, "version"_a, "limit"_a.none(), "gpu_memory"_a,
           "shared_memory"_a.none(), "compare"_a, "completion"_a, "emptied"_a.none(), "device"_a,
           "recorded"_a)
      .def("restore", &Replay::restore, "segments"_a)
      .def(
          "set_plan",
          [](Replay& replay, std::shared_ptr<ProgramPlan> plan) {
            replay.elastic().set_plan(std::move(plan));
          },
          "plan"_a, "Large requests lie where the plan says; before the first event.")
      .def_prop_ro(
          "plan_use", [](const Replay& replay) { return plan_uses(replay.elastic()); },
          nb::sig(kPlanUseSignature))
      .def("scatter_segments", &Replay::scatter_segments, "seed"_a)
      .def("feed", &Replay::feed, "columns"_a)
      .def("finish", &Replay::finish)
      .def_prop_ro("events", [](const Replay& replay) { return replay.replayer().events(); })
      .def_prop_ro("stopped", [](const Replay& replay) { return replay.replayer().stopped(); })
      .def_prop_ro("first_oom", [](const Replay& replay) { return replay.replayer().first_oom(); })
      .def_prop_ro(
          "first_oom_report",
          [](const Replay& replay) -> nb::object {
            const auto& report = replay.replayer().first_oom_report();
            if (!report) return nb::none();
            return nb::make_tuple(report->tried, report->allocated, report->reserved);
          },
          nb::sig("def first_oom_report(self) -> tuple[int, int, int] | None"))
      .def_prop_ro("avoided_ooms",
                   [](const Replay& replay) { return replay.replayer().avoided_ooms(); })
      .def_prop_ro("had_pending_frees",
                   [](const Replay& replay) { return replay.replayer().had_pending_frees(); })
      .def_prop_ro("emptied", [](const Replay& replay) { return replay.replayer().emptied(); })
      .def_prop_ro(
          "peak",
          [](const Replay& replay) {
            const PeakState& peak = replay.replayer().peak();
            return nb::make_tuple(peak.event, peak.reserved, peak.active, peak.allocated,
                                  peak.requested, peak.inactive_split);
          },
          nb::sig("def peak(self) -> tuple[int, int, int, int, int, int]"))
      .def_prop_ro("first_difference", &difference,
                   nb::sig("def first_difference(self) -> tuple[int, tuple[str, int, int] | None, "
                           "tuple[str, int, int] | None] | None"))
      .def_prop_ro("engine_seconds", &Replay::engine_seconds)
      .def_prop_ro("driver_seconds", &Replay::driver_seconds)
      .def_prop_ro("peak_dedicated", &Replay::peak_dedicated)
      .def("statistics", &Replay::statistics, nb::sig("def statistics(self) -> dict[str, int]"))
      .def("segments", [](const Replay& replay) { return replay.allocator().segments(); });

  nb::class_<LimitEvidence>(module, "LimitEvidence")
      .def(
          "__init__",
          [](LimitEvidence* self, const std::string& conf, const std::string& version,
             Bytes reserved_at_start) {
            new (self) LimitEvidence(config_of(conf, version), reserved_at_start);
          },
          "conf"_a, "version"_a, "reserved_at_start"_a)
      .def(
          "feed",
          [](LimitEvidence& evidence, const RecordedColumns& columns) {
            evidence.feed(columns.span());
          },
          "columns"_a)
      .def_prop_ro("has_segments", &LimitEvidence::has_segments)
      .def_prop_ro("range",
                   [](const LimitEvidence& evidence) -> std::optional<std::pair<Bytes, Bytes>> {
                     const auto range = evidence.range();
                     if (!range) return std::nullopt;
                     return std::pair(range->least, range->below);
                   });

  module.def(
      "starts_from_nothing",
      [](const RecordedColumns& columns, const std::vector<SegmentInfo>& segments) {
        return starts_from_nothing(columns.span(), segments);
      },
      "columns"_a, "segments"_a);
  module.def(
      "reconstruct_start",
      [](const RecordedColumns& columns, const std::vector<SegmentInfo>& segments,
         const std::string& conf, const std::string& version) {
        return reconstruct_start(columns.span(), segments, config_of(conf, version));
      },
      "columns"_a, "segments"_a, "conf"_a, "version"_a);
}

}  // namespace plimsoll::python
