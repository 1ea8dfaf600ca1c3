#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>

#include "arrays.h"
#include "module.h"
#include "plimsoll/trace/history.h"
#include "plimsoll/trace/recording.h"
#include "plimsoll/trace/snapshot.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace plimsoll::python {
namespace {

using Kind = PickleValue::Kind;

// Deeper nesting than any snapshot has is refused, before it could exhaust the stack.
constexpr int kMostNested = 64;

nb::object to_python(const PickleDocument& document, PickleValue value, int depth = 0) {
  if (depth > kMostNested) throw RecordingError("the snapshot's settings are nested too deeply");
  const auto text = [&](PickleValue of) {
    const std::string_view view = document.text(of);
    return nb::steal<nb::object>(
        PyUnicode_DecodeUTF8(view.data(), static_cast<Py_ssize_t>(view.size()), "replace"));
  };
  switch (value.kind()) {
    case Kind::none: return nb::none();
    case Kind::boolean: return nb::bool_(value.as_bool());
    case Kind::integer: return nb::int_(value.as_int());
    case Kind::unsigned_integer: return nb::int_(value.as_unsigned());
    case Kind::real: return nb::float_(value.as_real());
    case Kind::string: return text(value);
    case Kind::bytes: {
      const std::string_view view = document.text(value);
      return nb::bytes(view.data(), view.size());
    }
    case Kind::list:
    case Kind::tuple:
    case Kind::set: {
      nb::list list;
      for (const PickleValue item : document.items(value)) {
        list.append(to_python(document, item, depth + 1));
      }
      return list;
    }
    case Kind::dict: {
      nb::dict dict;
      const auto items = document.items(value);
      for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
        if (items[i].kind() == Kind::string) {
          dict[text(items[i])] = to_python(document, items[i + 1], depth + 1);
        }
      }
      return dict;
    }
  }
  return nb::none();
}

// What a snapshot file holds: columns, and the small parts as plain Python. The file's bytes and
// the values read from them are gone once it is made.
class SnapshotFile {
 public:
  explicit SnapshotFile(const nb::bytes& bytes) {
    const PickleDocument document = PickleDocument::parse({bytes.c_str(), bytes.size()});
    recording_ = Recording::read(document);
    for (const char* const key : {"allocator_settings", "external_annotations"}) {
      const auto value = document.find(document.root(), key);
      parts_[key] = value ? to_python(document, *value) : nb::none();
    }
  }

  [[nodiscard]] std::size_t device_count() const { return recording_.devices.size(); }
  [[nodiscard]] const DeviceRecording& device(std::size_t index) const {
    if (index >= recording_.devices.size()) throw nb::index_error("there is no such device");
    return recording_.devices[index];
  }
  [[nodiscard]] const std::vector<Stack>& stacks() const { return recording_.stacks; }

  // "allocator_settings" or "external_annotations" as plain Python; None if it is missing.
  [[nodiscard]] nb::object part(const std::string& key) const {
    return nb::object(parts_[key.c_str()]);
  }

 private:
  Recording recording_;
  nb::dict parts_;
};

}  // namespace

void bind_trace(nb::module_& module) {
  module.def("format_bytes", &format_bytes, "size"_a,
             "Show bytes as PyTorch's messages do: 512 bytes, 20.00 MiB, 9.52 GiB.");
  nb::exception<PickleError>(module, "PickleError", PyExc_ValueError);
  nb::exception<RecordingError>(module, "RecordingError", PyExc_ValueError);
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

  nb::class_<PoolId>(module, "PoolId")
      .def(nb::init<std::uint64_t, std::uint64_t>(), "first"_a = 0, "second"_a = 0)
      .def_ro("first", &PoolId::first)
      .def_ro("second", &PoolId::second);

  nb::class_<BlockInfo>(module, "BlockInfo")
      .def(
          "__init__",
          [](BlockInfo* self, Address address, Bytes size, Bytes requested,
             const std::string& state, std::uint32_t context) {
            const BlockState value = state == "active_allocated" ? BlockState::active_allocated
                                     : state == "inactive"       ? BlockState::inactive
                                                                 : BlockState::active_pending_free;
            new (self) BlockInfo{address, size, requested, value, context};
          },
          "address"_a, "size"_a, "requested"_a, "state"_a, "context"_a = 0)
      .def_ro("address", &BlockInfo::address)
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
      .def_ro("total_size", &SegmentInfo::total_size)
      .def_ro("stream", &SegmentInfo::stream)
      .def_ro("pool", &SegmentInfo::pool)
      .def_ro("small", &SegmentInfo::small)
      .def_ro("expandable", &SegmentInfo::expandable)
      .def_ro("context", &SegmentInfo::context)
      .def_ro("blocks", &SegmentInfo::blocks);

  nb::class_<SnapshotFile>(module, "SnapshotFile")
      .def(nb::init<const nb::bytes&>(), "bytes"_a)
      .def_prop_ro("device_count", &SnapshotFile::device_count)
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
            throw nb::key_error(name.c_str());
          },
          "device"_a, "name"_a,
          nb::sig("def column(self, device: int, name: str) -> "
                  "numpy.ndarray"))
      .def(
          "segments",
          [](const SnapshotFile& file, std::size_t device) { return file.device(device).segments; },
          "device"_a)
      .def_prop_ro("stack_count", [](const SnapshotFile& file) { return file.stacks().size(); })
      .def(
          "stack",
          [](const SnapshotFile& file, std::size_t number) {
            if (number >= file.stacks().size()) throw nb::index_error("there is no such stack");
            nb::list frames;
            for (const Frame& frame : file.stacks()[number]) {
              frames.append(nb::make_tuple(frame.filename, frame.line, frame.name));
            }
            return frames;
          },
          "number"_a, nb::sig("def stack(self, number: int) -> list[tuple[str, int, str]]"))
      .def("part", &SnapshotFile::part, "key"_a);
}

}  // namespace plimsoll::python
