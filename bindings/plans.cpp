#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "columns.h"
#include "module.h"
#include "plimsoll/planning/program_plan.h"
#include "plimsoll/replay/plan_maker.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace plimsoll::python {
namespace {

using SectionTuple = std::tuple<std::uint32_t, std::uint32_t>;
using SlotTuple = std::tuple<Bytes, Bytes, Bytes>;
using StreamTuple = std::tuple<std::vector<SectionTuple>, std::vector<SlotTuple>, Bytes>;

std::shared_ptr<ProgramPlan> plan_from(const std::vector<StreamTuple>& streams) {
  auto plan = std::make_shared<ProgramPlan>();
  for (const auto& [sections, slots, outside] : streams) {
    StreamPlan& stream = plan->streams.emplace_back();
    stream.outside = outside;
    for (const auto& [length, times] : sections) stream.sections.push_back({length, times});
    for (const auto& [size, least, offset] : slots) stream.slots.push_back({size, least, offset});
  }
  plan->check();
  return plan;
}

std::vector<StreamTuple> streams_of(const ProgramPlan& plan) {
  std::vector<StreamTuple> streams;
  for (const StreamPlan& stream : plan.streams) {
    auto& [sections, slots, outside] = streams.emplace_back();
    outside = stream.outside;
    for (const PlanSection& section : stream.sections) {
      sections.emplace_back(section.length, section.times);
    }
    for (const PlanSlot& slot : stream.slots) {
      slots.emplace_back(slot.size, slot.least, slot.offset);
    }
  }
  return streams;
}

}  // namespace

void bind_plans(nb::module_& module) {
  nb::class_<ProgramPlan>(module, "ProgramPlan", "See plimsoll/planning/program_plan.h.")
      .def(
          nb::new_(&plan_from), "streams"_a,
          "From (sections, slots, outside) of each stream: sections are (length, times), slots are "
          "(size, least, offset), outside is in bytes. Raises ValueError, with a line, if they do "
          "not make a plan.")
      .def_prop_ro("streams", &streams_of)
      .def_prop_ro(
          "heights",
          [](const ProgramPlan& plan) {
            std::vector<Bytes> heights;
            for (const StreamPlan& stream : plan.streams) heights.push_back(stream.height());
            return heights;
          },
          "Bytes of each stream's area.");

  nb::class_<PlanMaker>(module, "PlanMaker", "See plimsoll/replay/plan_maker.h.")
      .def(nb::init<>())
      .def(
          "feed",
          [](PlanMaker& maker, const RecordedColumns& columns) {
            const EventSpan events = columns.span();
            const nb::gil_scoped_release released;
            maker.feed(events);
          },
          "columns"_a)
      .def("plan", [](const PlanMaker& maker) {
        const nb::gil_scoped_release released;
        return std::make_shared<ProgramPlan>(maker.plan());
      });
}

}  // namespace plimsoll::python
