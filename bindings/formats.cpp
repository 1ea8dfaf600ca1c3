#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "conversions.h"
#include "module.h"
#include "plimsoll/formats/recording.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace plimsoll::python {
namespace {

using Kind = PickleValue::Kind;

// Decodes text from a file, which may contain any bytes.
nb::object decoded(std::string_view text) {
  return nb::steal<nb::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

// Converts the allocator settings in a snapshot file to plain Python objects. The file is a pickle,
// and a pickle can refer to one value many times, so a small file can expand to huge objects. This
// class refuses values larger than any real settings.
class PlainData {
 public:
  explicit PlainData(const PickleDocument& document) : document_(document) {}

  nb::object of(PickleValue value, int depth = 0) {
    if (depth > kMostNested) refuse();
    switch (value.kind()) {
      case Kind::none: return nb::none();
      case Kind::boolean: return nb::bool_(value.as_bool());
      case Kind::integer: return nb::int_(value.as_int());
      case Kind::unsigned_integer: return nb::int_(value.as_unsigned());
      case Kind::real: return nb::float_(value.as_real());
      case Kind::string: return text(value);
      case Kind::bytes: return nb::none();
      case Kind::list:
      case Kind::tuple:
      case Kind::set: {
        nb::list list;
        for (const PickleValue item : items(value)) list.append(of(item, depth + 1));
        return list;
      }
      case Kind::dict: {
        nb::dict dict;
        const auto pairs = items(value);
        for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
          if (pairs[i].kind() == Kind::string) dict[text(pairs[i])] = of(pairs[i + 1], depth + 1);
        }
        return dict;
      }
    }
    return nb::none();
  }

 private:
  static constexpr int kMostNested = 16;
  static constexpr std::size_t kMostValues = 20'000;
  static constexpr std::size_t kMostText = 1'048'576;

  [[noreturn]] static void refuse() {
    throw RecordingError("the snapshot's settings are too large");
  }

  std::span<const PickleValue> items(PickleValue container) {
    const auto items = document_.items(container);
    values_ += items.size();
    if (values_ > kMostValues) refuse();
    return items;
  }

  nb::object text(PickleValue value) {
    const std::string_view view = document_.text(value);
    text_ += view.size();
    if (text_ > kMostText) refuse();
    return decoded(view);
  }

  const PickleDocument& document_;
  std::size_t values_ = 0;
  std::size_t text_ = 0;
};

// Holds the content of a snapshot file: columns, and the settings as plain Python. The constructor
// releases the file's bytes and the values read from them.
class SnapshotFile {
 public:
  SnapshotFile(const Column<std::uint8_t>& content, std::size_t most_memory) {
    const PickleDocument document =
        PickleDocument::parse({reinterpret_cast<const char*>(content.data()), content.size()},
                              {.memory = most_memory, .poll = run_signal_handlers});
    recording_ = Recording::read(document, run_signal_handlers);
    names_.resize(recording_.names.size());
    const auto settings = document.find(document.root(), "allocator_settings");
    if (settings) settings_ = PlainData(document).of(*settings);
  }

  [[nodiscard]] std::size_t device_count() const { return recording_.devices.size(); }
  [[nodiscard]] const DeviceRecording& device(std::size_t index) const {
    if (index >= recording_.devices.size()) throw nb::index_error("there is no such device");
    return recording_.devices[index];
  }
  // Returns the frames of a call stack. Frames with the same name share one Python string.
  [[nodiscard]] nb::list stack(std::size_t number) {
    if (number >= recording_.stacks.size()) throw nb::index_error("there is no such stack");
    nb::list frames;
    for (const std::uint32_t frame_number : recording_.stacks[number]) {
      const plimsoll::Frame& frame = recording_.frames[frame_number];
      frames.append(nb::make_tuple(name(frame.filename), frame.line, name(frame.name)));
    }
    return frames;
  }
  [[nodiscard]] bool names_pools() const { return recording_.names_pools; }
  [[nodiscard]] bool has_host_memory() const { return recording_.has_host_memory; }
  // Returns "allocator_settings" as plain Python; None if it is missing.
  [[nodiscard]] nb::object settings() const { return settings_; }

 private:
  const nb::object& name(std::uint32_t number) {
    nb::object& name = names_[number];
    if (!name.is_valid()) name = decoded(recording_.names[number]);
    return name;
  }

  Recording recording_;
  std::vector<nb::object> names_;  // entry n: name n of the recording, null until requested
  nb::object settings_ = nb::none();
};

}  // namespace

void bind_formats(nb::module_& module) {
  nb::exception<PickleError>(module, "PickleError", PyExc_ValueError);
  nb::exception<RecordingError>(module, "RecordingError", PyExc_ValueError);
  nb::exception<ReadingLimitError>(module, "ReadingLimitError", PyExc_RuntimeError);

  nb::class_<SnapshotFile>(module, "SnapshotFile")
      .def(nb::init<const Column<std::uint8_t>&, std::size_t>(), "content"_a, "most_memory"_a,
           nb::sig("def __init__(self, content: bytes | bytearray, most_memory: int) -> None"),
           "Read the pickle. Values take `most_memory` bytes at most, or ReadingLimitError is "
           "raised.")
      .def_prop_ro("device_count", &SnapshotFile::device_count)
      .def_prop_ro("names_pools", &SnapshotFile::names_pools)
      .def_prop_ro("has_host_memory", &SnapshotFile::has_host_memory)
      .def(
          "column",
          [](nb::handle_t<SnapshotFile> self, std::size_t device, const std::string& name) {
            const auto& file = nb::cast<const SnapshotFile&>(self);
            const EventColumns& events = file.device(device).events;
            if (name == "action") return nb::object(view(events.action, self));
            if (name == "address") return nb::object(view(events.address, self));
            if (name == "size") return nb::object(view(events.size, self));
            if (name == "stream") return nb::object(view(events.stream, self));
            if (name == "time_us") return nb::object(view(events.time_us, self));
            if (name == "stack") return nb::object(view(events.stack, self));
            if (name == "pool_first") return nb::object(view(events.pool_first, self));
            if (name == "pool_second") return nb::object(view(events.pool_second, self));
            if (name == "shared") return nb::object(view(events.shared, self));
            throw nb::key_error(name.c_str());
          },
          "device"_a, "name"_a,
          nb::sig("def column(self, device: int, name: str) -> "
                  "numpy.ndarray"))
      .def(
          "segments",
          [](const SnapshotFile& file, std::size_t device) { return file.device(device).segments; },
          "device"_a)
      .def("stack", &SnapshotFile::stack, "number"_a,
           nb::sig("def stack(self, number: int) -> list[tuple[str, int, str]]"))
      .def_prop_ro("settings", &SnapshotFile::settings);
}

}  // namespace plimsoll::python
