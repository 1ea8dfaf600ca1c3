// A recorded memory snapshot. It has each device's events, in order, and the device's segments at
// the end of the recording. Events are stored as columns, one for each field. Equal call stacks are
// stored once, and events refer to them by index. Equal names are stored once, too.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "plimsoll/events/event.h"
#include "plimsoll/events/segment.h"
#include "plimsoll/formats/pickle.h"

namespace plimsoll {

// Thrown when a pickle contains no usable memory history. The message gives the reason.
class RecordingError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Frame {
  std::uint32_t filename = 0;  // `filename` and `name` are indices of Recording::names
  std::uint32_t name = 0;
  std::int64_t line = 0;
  auto operator<=>(const Frame&) const = default;
};
using Stack = std::vector<std::uint32_t>;  // indices of Recording::frames, innermost first

struct EventColumns {
  std::vector<std::uint8_t> action;
  std::vector<Address> address;
  std::vector<Bytes> size;
  std::vector<StreamId> stream;
  std::vector<std::int64_t> time_us;
  std::vector<std::uint32_t> stack;        // 0 means no stack
  std::vector<std::uint64_t> pool_first;   // first part of the pool's id; 0 if the pool is unknown
  std::vector<std::uint64_t> pool_second;  // second part; 0 if the pool is unknown
  std::vector<Bytes> shared;               // the part of `size` in shared memory

  [[nodiscard]] std::size_t count() const { return action.size(); }
};

struct DeviceRecording {
  EventColumns events;
  // Sorted by address. Each `context` is an index of Recording::stacks.
  std::vector<SegmentInfo> segments;
};

struct Recording {
  std::vector<DeviceRecording> devices;
  std::vector<std::string> names;  // names of files and functions, each stored once; [0] is empty
  std::vector<Frame> frames;
  std::vector<Stack> stacks;  // [0] is the empty stack
  // Features that show which version of PyTorch wrote the file.
  bool names_pools = false;      // events name their pools; since PyTorch 2.12
  bool has_host_memory = false;  // the snapshot lists host memory; since PyTorch 2.14

  // Reads a snapshot: a dict as torch.cuda.memory._snapshot() returns it. Time and memory are
  // linear in the document's size, even if the document shares values many times. Calls `poll` at
  // intervals. Throws RecordingError, and whatever `poll` throws.
  [[nodiscard]] static Recording read(const PickleDocument& document,
                                      const std::function<void()>& poll = {});
};

}  // namespace plimsoll
