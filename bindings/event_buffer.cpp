#include "event_buffer.h"

#include <nanobind/nanobind.h>

#include <cstdint>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "conversions.h"
#include "module.h"
#include "plimsoll/recorder_api.h"
#include "stacks.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace plimsoll::python {

namespace {

void add(plimsoll_event_buffer* handle, std::int32_t device, const plimsoll_event* event,
         std::uint32_t stack) {
  const TraceEvent copy{
      static_cast<Action>(event->action),      event->address, event->size, event->stream,
      {event->pool.first, event->pool.second}, event->time_us, stack,       event->shared};
  reinterpret_cast<RecordingBuffer*>(handle)->events().add(device, copy);
}

// Actions of entries that are not allocator events. Python adds these entries with `mark` and
// `label`.
constexpr std::uint8_t kMark = 255;   // names a moment
constexpr std::uint8_t kLabel = 254;  // names the content of an address

constexpr plimsoll_recorder_api kRecorderApi{PLIMSOLL_RECORDER_API_VERSION, add, capture_stack,
                                             join_stacks};

template <typename T>
std::vector<T> column(const std::vector<DeviceEvent>& events, auto member) {
  std::vector<T> values;
  values.reserve(events.size());
  for (const DeviceEvent& event : events) values.push_back(static_cast<T>(member(event)));
  return values;
}

// Holds the events as columns: first the device, then the columns of an event batch.
using Columns =
    std::tuple<std::vector<std::int32_t>, std::vector<std::uint8_t>, std::vector<std::uint64_t>,
               std::vector<std::uint64_t>, std::vector<std::uint64_t>, std::vector<std::int64_t>,
               std::vector<std::uint64_t>, std::vector<std::uint64_t>, std::vector<std::uint32_t>,
               std::vector<std::uint64_t>>;

Columns columns_of(const std::vector<DeviceEvent>& events) {
  const auto words = [&events](auto member) { return column<std::uint64_t>(events, member); };
  return {column<std::int32_t>(events, [](const DeviceEvent& e) { return e.device; }),
          column<std::uint8_t>(events, [](const DeviceEvent& e) { return e.event.action; }),
          words([](const DeviceEvent& e) { return e.event.address; }),
          words([](const DeviceEvent& e) { return e.event.size; }),
          words([](const DeviceEvent& e) { return e.event.stream; }),
          column<std::int64_t>(events, [](const DeviceEvent& e) { return e.event.time_us; }),
          words([](const DeviceEvent& e) { return e.event.pool.first; }),
          words([](const DeviceEvent& e) { return e.event.pool.second; }),
          column<std::uint32_t>(events, [](const DeviceEvent& e) { return e.event.context; }),
          words([](const DeviceEvent& e) { return e.event.shared; })};
}

nb::tuple drain(RecordingBuffer& buffer) {
  Columns columns;
  {
    const nb::gil_scoped_release released;  // other Python threads may run while this one waits
    const std::lock_guard draining(buffer.draining());
    columns = columns_of(buffer.events().drain());
  }
  return std::apply(
      [](auto&... values) { return nb::make_tuple(owned_view(std::move(values))...); }, columns);
}

}  // namespace

void bind_event_buffer(nb::module_& module) {
  module.attr("EVENT_MARK") = kMark;
  module.attr("EVENT_LABEL") = kLabel;
  nb::class_<RecordingBuffer>(module, "EventBuffer")
      .def_static(
          "make", [](std::size_t capacity) { return new RecordingBuffer(capacity); }, "capacity"_a,
          nb::rv_policy::reference, "A buffer for so many events; it stays until the process ends.")
      .def_prop_ro(
          "handle",
          [](RecordingBuffer& buffer) { return reinterpret_cast<std::uintptr_t>(&buffer); })
      .def(
          "mark",
          [](RecordingBuffer& buffer, std::uint32_t number, std::int64_t time_us) {
            TraceEvent event;
            event.action = static_cast<Action>(kMark);
            event.time_us = time_us;
            event.context = number;
            buffer.events().add(-1, event);
          },
          "number"_a, "time_us"_a, "Add a row between the events, with EVENT_MARK as its action.")
      .def(
          "label",
          [](RecordingBuffer& buffer, std::uint32_t number, std::int32_t device,
             std::uint64_t address) {
            TraceEvent event;
            event.action = static_cast<Action>(kLabel);
            event.address = address;
            event.context = number;
            buffer.events().add(device, event);
          },
          "number"_a, "device"_a, "address"_a,
          "Add a row between the events, with EVENT_LABEL as its action.")
      .def("drain", &drain, nb::sig("def drain(self) -> tuple[numpy.ndarray, ...]"),
           "Take all events that wait, as columns: device, and those of an event batch.")
      .def(
          "close",
          [](RecordingBuffer& buffer) {
            const nb::gil_scoped_release released;
            const std::lock_guard draining(buffer.draining());
            buffer.events().close();
          },
          "Give the memory back; events from now on are dropped.")
      .def_prop_ro("dropped", [](RecordingBuffer& buffer) { return buffer.events().dropped(); });
  module.def(
      "recorder_api", [] { return reinterpret_cast<std::uintptr_t>(&kRecorderApi); },
      "The address of the table of C functions in plimsoll/recorder_api.h.");
}

}  // namespace plimsoll::python
