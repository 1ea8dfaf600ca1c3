#include "plimsoll/formats/recording.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace plimsoll {
namespace {

using Kind = PickleValue::Kind;

std::string of_kind(PickleValue value) { return std::string(kind_name(value.kind())); }

// Text of a stranger's, fit for a message: short, and nothing that a terminal would obey.
std::string printable(std::string_view text) {
  std::string result(text.substr(0, 80));
  for (char& character : result) {
    if (character < ' ' || character > '~') character = '?';
  }
  return result;
}

// Names an entry for messages: "event 17 of device 0".
struct Place {
  const char* what;
  std::size_t index;
  std::size_t device;
  [[nodiscard]] std::string text() const {
    return std::string(what) + " " + std::to_string(index) + " of device " + std::to_string(device);
  }
};

[[noreturn]] void fail(const Place& place, const std::string& problem) {
  throw RecordingError(place.text() + " " + problem);
}

std::uint64_t unsigned_of(PickleValue value, std::string_view key, const Place& place) {
  if (value.kind() == Kind::unsigned_integer) return value.as_unsigned();
  if (value.kind() != Kind::integer) {
    fail(place, "has " + of_kind(value) + " as '" + std::string(key) + "', not an integer");
  }
  const std::int64_t integer = value.as_int();
  if (integer < 0 && key != "stream") {
    fail(place, "has a negative " + std::string(key) + " (" + std::to_string(integer) + ")");
  }
  return static_cast<std::uint64_t>(integer);
}

// Goes through the containers of a document. Values can be shared in a pickle, so that a small one
// stands for a huge one; what PyTorch writes shares names and stacks, but each event and each
// segment is there once. So whoever visits much more than the document has is led in circles.
class Visitor {
 public:
  Visitor(const PickleDocument& document, const std::function<void()>& poll)
      : document_(document), poll_(poll), left_(kSlack + 2 * document.item_count()) {}

  std::span<const PickleValue> items(PickleValue container) {
    const auto items = document_.items(container);
    if (items.size() > left_) {
      throw RecordingError("the snapshot lists the same values again and again");
    }
    left_ -= items.size();
    visited_ += items.size() + 1;
    if (visited_ >= kValuesBetweenPolls) {
      visited_ = 0;
      if (poll_) poll_();
    }
    return items;
  }

  [[nodiscard]] const PickleDocument& document() const { return document_; }

 private:
  static constexpr std::size_t kSlack = 1 << 16;
  static constexpr std::size_t kValuesBetweenPolls = 1 << 18;

  const PickleDocument& document_;
  const std::function<void()>& poll_;
  std::size_t left_;
  std::size_t visited_ = 0;
};

// Names, frames and call stacks by number; the same ones get the same number. Each is read once
// however often it is shared.
class StackTable {
 public:
  StackTable(Visitor& visitor, Recording& recording)
      : visitor_(visitor), document_(visitor.document()), recording_(recording) {
    recording_.stacks.emplace_back();
    recording_.names.emplace_back();
    name_numbers_.emplace(std::string_view(), 0);
  }

  std::uint32_t number(PickleValue frames) {
    if (frames.kind() != Kind::list && frames.kind() != Kind::tuple) return 0;
    const PickleValue* const place = document_.items(frames).data();
    if (const auto known = by_list_.find(place); known != by_list_.end()) return known->second;
    const auto items = visitor_.items(frames);
    if (items.empty()) return 0;
    Stack stack;
    for (const PickleValue item : items.first(std::min(items.size(), kMostFrames))) {
      stack.push_back(frame_number(item));
    }
    const auto [entry, is_new] =
        stack_numbers_.try_emplace(stack, static_cast<std::uint32_t>(recording_.stacks.size()));
    if (is_new) recording_.stacks.push_back(std::move(stack));
    by_list_.emplace(place, entry->second);
    return entry->second;
  }

 private:
  // A name that many lines share is part of what is shown of each, and a frame costs a byte of the
  // file where frames are shared.
  static constexpr std::size_t kLongestName = 512;
  static constexpr std::size_t kMostFrames = 1024;

  std::uint32_t frame_number(PickleValue value) {
    if (value.kind() != Kind::dict) return frame_number(Frame{});
    const PickleValue* const place = document_.items(value).data();
    if (const auto known = by_dict_.find(place); known != by_dict_.end()) return known->second;
    Frame frame;
    const auto items = visitor_.items(value);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      if (items[i].kind() != Kind::string) continue;
      const std::string_view key = document_.text(items[i]);
      const PickleValue of_key = items[i + 1];
      if (key == "filename") frame.filename = name_number(of_key);
      if (key == "name") frame.name = name_number(of_key);
      if (key == "line" && of_key.kind() == Kind::integer) frame.line = of_key.as_int();
    }
    const std::uint32_t number = frame_number(frame);
    by_dict_.emplace(place, number);
    return number;
  }

  std::uint32_t frame_number(const Frame& frame) {
    const auto [entry, is_new] =
        frame_numbers_.try_emplace(frame, static_cast<std::uint32_t>(recording_.frames.size()));
    if (is_new) recording_.frames.push_back(frame);
    return entry->second;
  }

  std::uint32_t name_number(PickleValue value) {
    if (value.kind() != Kind::string) return 0;
    const std::string_view text = document_.text(value).substr(0, kLongestName);
    if (text.empty()) return 0;
    if (const auto known = by_text_.find(text.data()); known != by_text_.end()) {
      return known->second;
    }
    const auto [entry, is_new] =
        name_numbers_.try_emplace(text, static_cast<std::uint32_t>(recording_.names.size()));
    if (is_new) recording_.names.emplace_back(text);
    by_text_.emplace(text.data(), entry->second);
    return entry->second;
  }

  Visitor& visitor_;
  const PickleDocument& document_;
  Recording& recording_;
  std::unordered_map<const char*, std::uint32_t> by_text_;
  // A map, for names that hash alike are easily made.
  std::map<std::string_view, std::uint32_t> name_numbers_;
  std::unordered_map<const PickleValue*, std::uint32_t> by_list_;
  std::unordered_map<const PickleValue*, std::uint32_t> by_dict_;
  std::map<Stack, std::uint32_t> stack_numbers_;
  std::map<Frame, std::uint32_t> frame_numbers_;
};

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
  EventReader(Visitor& visitor, StackTable& stacks)
      : visitor_(visitor), document_(visitor.document()), stacks_(stacks) {}

  void read(PickleValue event, const Place& place, EventColumns& columns) {
    if (event.kind() != Kind::dict) fail(place, "is " + of_kind(event) + ", not a dict");
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
          action = action_of(value, place);
          is_remark = !action;
          break;
        case Field::address: address = unsigned_of(value, "addr", place); break;
        case Field::device_free: address = unsigned_of(value, "device_free", place); break;
        case Field::size: size = unsigned_of(value, "size", place); break;
        case Field::stream: stream = unsigned_of(value, "stream", place); break;
        case Field::time_us:
          time_us = static_cast<std::int64_t>(unsigned_of(value, "time_us", place));
          break;
        case Field::frames: stack = stacks_.number(value); break;
        case Field::pool:
          pool = pool_of(value, place);
          names_pools_ = true;
          break;
        case Field::shared: shared = unsigned_of(value, "shared_size", place); break;
        case Field::other: break;
      }
    }
    if (is_remark) return;
    if (!action) fail(place, "has no 'action'");
    if (!size) fail(place, "has no 'size'");
    if (!address && *action != Action::oom && *action != Action::snapshot) {
      fail(place, "has no 'addr'");
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

  // Whether any event said to which pool it belongs.
  [[nodiscard]] bool names_pools() const { return names_pools_; }

  PoolId pool_of(PickleValue value, const Place& place) const {
    if (value.kind() != Kind::tuple && value.kind() != Kind::list) return {};
    const auto items = document_.items(value);
    if (items.size() != 2) fail(place, "has a pool id that is not a pair");
    return {unsigned_of(items[0], "pool_id", place), unsigned_of(items[1], "pool_id", place)};
  }

 private:
  // Pickles store each key once, so the same place mostly holds the very same string.
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

  // None for what PyTorch 2.14 and later note about a block, which changes nothing.
  std::optional<Action> action_of(PickleValue value, const Place& place) {
    if (value.kind() != Kind::string) fail(place, "has no text as 'action'");
    const std::string_view text = document_.text(value);
    for (const auto& [known, action] : actions_) {
      if (known == text.data()) return action;
    }
    const auto action = action_from(text);
    if (!action && text != "annotate") {
      fail(place, "has an unknown action '" + printable(text) + "'");
    }
    if (actions_.size() <= kActionCount) actions_.emplace_back(text.data(), action);
    return action;
  }

  Visitor& visitor_;
  const PickleDocument& document_;
  StackTable& stacks_;
  std::vector<std::pair<const char*, Field>> keys_;
  std::vector<std::pair<const char*, std::optional<Action>>> actions_;
  bool names_pools_ = false;
};

class SegmentReader {
 public:
  SegmentReader(Visitor& visitor, StackTable& stacks, const EventReader& events)
      : visitor_(visitor), document_(visitor.document()), stacks_(stacks), events_(events) {}

  [[nodiscard]] SegmentInfo read(PickleValue value, const Place& place) {
    if (value.kind() != Kind::dict) fail(place, "is " + of_kind(value) + ", not a dict");
    visitor_.items(value);
    SegmentInfo segment;
    segment.address = required(value, "address", place);
    segment.total_size = required(value, "total_size", place);
    segment.stream = optional(value, "stream", place);
    segment.shared = std::min(optional(value, "shared_size", place), segment.total_size);
    segment.small = text(value, "segment_type") == "small";
    if (const auto expandable = document_.find(value, "is_expandable")) {
      segment.expandable = expandable->kind() == Kind::boolean && expandable->as_bool();
    }
    if (const auto pool = document_.find(value, "segment_pool_id")) {
      segment.pool = events_.pool_of(*pool, place);
    }
    if (const auto frames = document_.find(value, "frames")) {
      segment.context = stacks_.number(*frames);
    }
    const auto blocks = document_.find(value, "blocks");
    if (!blocks || blocks->kind() != Kind::list) fail(place, "has no 'blocks'");
    Address address = segment.address;
    for (const PickleValue item : visitor_.items(*blocks)) {
      if (item.kind() != Kind::dict) fail(place, "has " + of_kind(item) + " as a block");
      visitor_.items(item);
      BlockInfo block;
      block.address = address;
      block.size = required(item, "size", place);
      block.requested = optional(item, "requested_size", place);
      block.shared = std::min(optional(item, "shared_size", place), block.size);
      const std::string_view state = text(item, "state");
      block.state = state == "active_allocated" ? BlockState::active_allocated
                    : state == "inactive"       ? BlockState::inactive
                                                : BlockState::active_pending_free;
      if (const auto frames = document_.find(item, "frames")) {
        block.context = stacks_.number(*frames);
      }
      address += block.size;
      segment.blocks.push_back(block);
    }
    if (address != segment.address + segment.total_size) {
      fail(place, "has blocks that do not add up to its size");
    }
    return segment;
  }

 private:
  std::uint64_t required(PickleValue dict, std::string_view key, const Place& place) const {
    const auto value = document_.find(dict, key);
    if (!value) fail(place, "has no '" + std::string(key) + "'");
    return unsigned_of(*value, key, place);
  }
  std::uint64_t optional(PickleValue dict, std::string_view key, const Place& place) const {
    const auto value = document_.find(dict, key);
    return value ? unsigned_of(*value, key, place) : 0;
  }
  std::string_view text(PickleValue dict, std::string_view key) const {
    const auto value = document_.find(dict, key);
    return value && value->kind() == Kind::string ? document_.text(*value) : std::string_view();
  }

  Visitor& visitor_;
  const PickleDocument& document_;
  StackTable& stacks_;
  const EventReader& events_;
};

// PyTorch before 2.12 does not say to which pool an event belongs, but the segments that are left
// at the end know theirs. Going back in time, whatever lies in one of them belongs to its pool,
// until the event that made the segment.
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

// As many as PyTorch knows (C10_COMPILE_TIME_MAX_GPUS).
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
  Visitor visitor(document, poll);
  StackTable stacks(visitor, recording);
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
      const Place place{"segment", index++, 0};
      SegmentInfo segment = reader.read(value, place);
      std::size_t device = 0;
      if (const auto number = document.find(value, "device")) {
        device = unsigned_of(*number, "device", place);
      }
      if (device >= kMostDevices) fail(place, "has a device number that is too large");
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
