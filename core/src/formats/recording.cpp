#include "plimsoll/formats/recording.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "plimsoll/base/text.h"
#include "plimsoll/formats/document_visitor.h"
#include "plimsoll/formats/stack_reader.h"

namespace plimsoll {
namespace {

using Kind = PickleValue::Kind;

std::string of_kind(PickleValue value) { return std::string(kind_name(value.kind())); }

// Names an entry for messages: "event 17 of device 0".
struct Entry {
  const char* what;
  std::size_t index;
  std::size_t device;
  [[nodiscard]] std::string text() const {
    return std::string(what) + " " + std::to_string(index) + " of device " + std::to_string(device);
  }
};

[[noreturn]] void fail(const Entry& entry, const std::string& problem) {
  throw RecordingError(entry.text() + " " + problem);
}

std::uint64_t unsigned_of(PickleValue value, std::string_view key, const Entry& entry) {
  if (value.kind() == Kind::unsigned_integer) return value.as_unsigned();
  if (value.kind() != Kind::integer) {
    fail(entry, "has " + of_kind(value) + " as '" + std::string(key) + "', not an integer");
  }
  const std::int64_t integer = value.as_int();
  if (integer < 0 && key != "stream") {
    fail(entry, "has a negative " + std::string(key) + " (" + std::to_string(integer) + ")");
  }
  return static_cast<std::uint64_t>(integer);
}

enum class Field : std::uint8_t {
  action,
  address,
  device_free,
  size,
  stream,
  time_us,
  frames,
  pool,
  shared,
  other,
};

Field field_of(std::string_view key) {
  static constexpr std::array<std::pair<std::string_view, Field>, 9> kFields{{
      {"action", Field::action},
      {"addr", Field::address},
      {"device_free", Field::device_free},
      {"size", Field::size},
      {"stream", Field::stream},
      {"time_us", Field::time_us},
      {"frames", Field::frames},
      {"pool_id", Field::pool},
      {"shared_size", Field::shared},
  }};
  for (const auto& [name, field] : kFields) {
    if (name == key) return field;
  }
  return Field::other;
}

class EventReader {
 public:
  EventReader(DocumentVisitor& visitor, StackReader& stacks)
      : visitor_(visitor), document_(visitor.document()), stacks_(stacks) {}

  void read(PickleValue event, const Entry& entry, EventColumns& columns) {
    if (event.kind() != Kind::dict) fail(entry, "is " + of_kind(event) + ", not a dict");
    const auto items = visitor_.items(event);
    std::optional<Action> action;
    bool is_remark = false;
    std::optional<std::uint64_t> address;
    std::optional<std::uint64_t> size;
    std::uint64_t stream = 0;
    std::int64_t time_us = 0;
    std::uint32_t stack = 0;
    Bytes shared = 0;
    PoolId pool;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      const PickleValue value = items[i + 1];
      switch (field(items[i], i / 2)) {
        case Field::action:
          action = action_of(value, entry);
          is_remark = !action;
          break;
        case Field::address: address = unsigned_of(value, "addr", entry); break;
        case Field::device_free: address = unsigned_of(value, "device_free", entry); break;
        case Field::size: size = unsigned_of(value, "size", entry); break;
        case Field::stream: stream = unsigned_of(value, "stream", entry); break;
        case Field::time_us:
          time_us = static_cast<std::int64_t>(unsigned_of(value, "time_us", entry));
          break;
        case Field::frames: stack = stacks_.number(value); break;
        case Field::pool:
          pool = pool_of(value, entry);
          names_pools_ = true;
          break;
        case Field::shared: shared = unsigned_of(value, "shared_size", entry); break;
        case Field::other: break;
      }
    }
    if (is_remark) return;
    if (!action) fail(entry, "has no 'action'");
    if (!size) fail(entry, "has no 'size'");
    if (!address && *action != Action::oom && *action != Action::snapshot) {
      fail(entry, "has no 'addr'");
    }
    columns.action.push_back(static_cast<std::uint8_t>(*action));
    columns.address.push_back(address.value_or(0));
    columns.size.push_back(*size);
    columns.stream.push_back(stream);
    columns.time_us.push_back(time_us);
    columns.stack.push_back(stack);
    columns.pool_first.push_back(pool.first);
    columns.pool_second.push_back(pool.second);
    columns.shared.push_back(std::min(shared, *size));
  }

  // Returns whether any event named its pool.
  [[nodiscard]] bool names_pools() const { return names_pools_; }

  PoolId pool_of(PickleValue value, const Entry& entry) const {
    if (value.kind() != Kind::tuple && value.kind() != Kind::list) return {};
    const auto items = document_.items(value);
    if (items.size() != 2) fail(entry, "has a pool id that is not a pair");
    return {unsigned_of(items[0], "pool_id", entry), unsigned_of(items[1], "pool_id", entry)};
  }

 private:
  // Returns the field that a key names. `place` is the key's position in its dict. For each
  // position, the reader remembers the key that it saw there last, and this key's field. A pickle
  // stores each string once, so comparing pointers usually suffices.
  Field field(PickleValue key, std::size_t place) {
    if (key.kind() != Kind::string) return Field::other;
    const std::string_view text = document_.text(key);
    if (place >= keys_.size()) keys_.resize(place + 1);
    auto& [known, field] = keys_[place];
    if (known != text.data()) {
      known = text.data();
      field = field_of(text);
    }
    return field;
  }

  // Returns the action that a text names. Returns nothing for actions of PyTorch 2.14 and later
  // that only annotate a block.
  std::optional<Action> action_of(PickleValue value, const Entry& entry) {
    if (value.kind() != Kind::string) fail(entry, "has no text as 'action'");
    const std::string_view text = document_.text(value);
    for (const auto& [known, action] : actions_) {
      if (known == text.data()) return action;
    }
    const auto action = action_from(text);
    if (!action && text != "annotate") {
      fail(entry, "has an unknown action '" + printable(text) + "'");
    }
    if (actions_.size() <= kActionCount) actions_.emplace_back(text.data(), action);
    return action;
  }

  DocumentVisitor& visitor_;
  const PickleDocument& document_;
  StackReader& stacks_;
  std::vector<std::pair<const char*, Field>> keys_;
  std::vector<std::pair<const char*, std::optional<Action>>> actions_;
  bool names_pools_ = false;
};

class SegmentReader {
 public:
  SegmentReader(DocumentVisitor& visitor, StackReader& stacks, const EventReader& events)
      : visitor_(visitor), document_(visitor.document()), stacks_(stacks), events_(events) {}

  [[nodiscard]] SegmentInfo read(PickleValue value, const Entry& entry) {
    if (value.kind() != Kind::dict) fail(entry, "is " + of_kind(value) + ", not a dict");
    visitor_.items(value);
    SegmentInfo segment;
    segment.address = required(value, "address", entry);
    segment.total_size = required(value, "total_size", entry);
    segment.stream = optional(value, "stream", entry);
    segment.shared = std::min(optional(value, "shared_size", entry), segment.total_size);
    segment.small = text(value, "segment_type") == "small";
    if (const auto expandable = document_.find(value, "is_expandable")) {
      segment.expandable = expandable->kind() == Kind::boolean && expandable->as_bool();
    }
    if (const auto pool = document_.find(value, "segment_pool_id")) {
      segment.pool = events_.pool_of(*pool, entry);
    }
    if (const auto frames = document_.find(value, "frames")) {
      segment.context = stacks_.number(*frames);
    }
    const auto blocks = document_.find(value, "blocks");
    if (!blocks || blocks->kind() != Kind::list) fail(entry, "has no 'blocks'");
    Address address = segment.address;
    for (const PickleValue item : visitor_.items(*blocks)) {
      if (item.kind() != Kind::dict) fail(entry, "has " + of_kind(item) + " as a block");
      visitor_.items(item);
      BlockInfo block;
      block.address = address;
      block.size = required(item, "size", entry);
      block.requested = optional(item, "requested_size", entry);
      block.shared = std::min(optional(item, "shared_size", entry), block.size);
      const std::string_view word = text(item, "state");
      const std::optional<BlockState> state = parse_block_state(word);
      if (!state) fail(entry, "has a block of an unknown state '" + printable(word) + "'");
      block.state = *state;
      if (const auto frames = document_.find(item, "frames")) {
        block.context = stacks_.number(*frames);
      }
      address += block.size;
      segment.blocks.push_back(block);
    }
    if (address != segment.address + segment.total_size) {
      fail(entry, "has blocks that do not add up to its size");
    }
    return segment;
  }

 private:
  std::uint64_t required(PickleValue dict, std::string_view key, const Entry& entry) const {
    const auto value = document_.find(dict, key);
    if (!value) fail(entry, "has no '" + std::string(key) + "'");
    return unsigned_of(*value, key, entry);
  }
  std::uint64_t optional(PickleValue dict, std::string_view key, const Entry& entry) const {
    const auto value = document_.find(dict, key);
    return value ? unsigned_of(*value, key, entry) : 0;
  }
  std::string_view text(PickleValue dict, std::string_view key) const {
    const auto value = document_.find(dict, key);
    return value && value->kind() == Kind::string ? document_.text(*value) : std::string_view();
  }

  DocumentVisitor& visitor_;
  const PickleDocument& document_;
  StackReader& stacks_;
  const EventReader& events_;
};

// Fills in the pools of the events. Before 2.12, PyTorch's events do not name their pools, but the
// final segments do. Events are visited backwards. An event at an address in a segment belongs to
// the segment's pool, unless the event is older than the segment.
void name_pools(DeviceRecording& device) {
  EventColumns& events = device.events;
  std::map<Address, const SegmentInfo*> private_segments;
  for (const SegmentInfo& segment : device.segments) {
    if (!segment.pool.is_default()) private_segments.emplace(segment.address, &segment);
  }
  for (std::size_t i = events.count(); i-- > 0 && !private_segments.empty();) {
    auto entry = private_segments.upper_bound(events.address[i]);
    const auto action = static_cast<Action>(events.action[i]);
    if (entry == private_segments.begin() || action == Action::oom) continue;
    --entry;
    const SegmentInfo& segment = *entry->second;
    if (events.address[i] >= segment.address + segment.total_size) continue;
    events.pool_first[i] = segment.pool.first;
    events.pool_second[i] = segment.pool.second;
    if (action == Action::segment_alloc) private_segments.erase(entry);
  }
}

// PyTorch's own maximum (C10_COMPILE_TIME_MAX_GPUS).
constexpr std::size_t kMostDevices = 120;

}  // namespace

Recording Recording::read(const PickleDocument& document, const std::function<void()>& poll) {
  const PickleValue root = document.root();
  if (root.kind() != Kind::dict) {
    throw RecordingError("not a memory snapshot: it holds " + of_kind(root) + ", not a dict");
  }
  const auto traces = document.find(root, "device_traces");
  if (!traces) {
    throw RecordingError(
        "the snapshot has no 'device_traces': call torch.cuda.memory._record_memory_history() "
        "before the run that _dump_snapshot() is to show");
  }
  if (traces->kind() != Kind::list) {
    throw RecordingError("'device_traces' is " + of_kind(*traces) + ", not a list");
  }
  Recording recording;
  DocumentVisitor visitor(document, poll);
  StackReader stacks(visitor, recording);
  EventReader events(visitor, stacks);
  const auto devices = visitor.items(*traces);
  if (devices.size() > kMostDevices) throw RecordingError("'device_traces' has too many devices");
  recording.devices.resize(devices.size());
  for (std::size_t device = 0; device < devices.size(); ++device) {
    if (devices[device].kind() != Kind::list) {
      throw RecordingError("the trace of device " + std::to_string(device) + " is " +
                           of_kind(devices[device]) + ", not a list");
    }
    const auto entries = visitor.items(devices[device]);
    for (std::size_t index = 0; index < entries.size(); ++index) {
      events.read(entries[index], {"event", index, device}, recording.devices[device].events);
    }
  }
  if (const auto segments = document.find(root, "segments");
      segments && segments->kind() == Kind::list) {
    SegmentReader reader(visitor, stacks, events);
    std::size_t index = 0;
    for (const PickleValue value : visitor.items(*segments)) {
      const Entry entry{"segment", index++, 0};
      SegmentInfo segment = reader.read(value, entry);
      std::size_t device = 0;
      if (const auto number = document.find(value, "device")) {
        device = unsigned_of(*number, "device", entry);
      }
      if (device >= kMostDevices) fail(entry, "has a device number that is too large");
      if (device >= recording.devices.size()) recording.devices.resize(device + 1);
      recording.devices[device].segments.push_back(std::move(segment));
    }
  }
  for (DeviceRecording& device : recording.devices) {
    std::sort(device.segments.begin(), device.segments.end(),
              [](const SegmentInfo& a, const SegmentInfo& b) { return a.address < b.address; });
    if (!events.names_pools()) name_pools(device);
  }
  recording.names_pools = events.names_pools();
  recording.has_host_memory = document.find(root, "host_segments").has_value();
  return recording;
}

}  // namespace plimsoll
