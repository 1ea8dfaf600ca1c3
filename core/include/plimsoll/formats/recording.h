// A recorded memory snapshot as columns: for each device its events, in order, and the segments it
// ended with. Equal call stacks are stored once and named by number; so are names.
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

// The file is a pickle, but not of a memory history that can be used; the message says why.
class RecordingError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Frame {
  std::uint32_t filename = 0;  // names by number
  std::uint32_t name = 0;
  std::int64_t line = 0;
  auto operator<=>(const Frame&) const = default;
};
using Stack = std::vector<std::uint32_t>;  // frame numbers, innermost first

struct EventColumns {
  std::vector<std::uint8_t> action;
  std::vector<Address> address;
  std::vector<Bytes> size;
  std::vector<StreamId> stream;
  std::vector<std::int64_t> time_us;
  std::vector<std::uint32_t> stack;       // 0: none
  std::vector<std::uint64_t> pool_first;  // of the pool's id; 0, 0 where it was not recorded
  std::vector<std::uint64_t> pool_second;
  std::vector<Bytes> shared;  // of `size`, in shared memory

  [[nodiscard]] std::size_t count() const { return action.size(); }
};

struct DeviceRecording {
  EventColumns events;
  std::vector<SegmentInfo> segments;  // by address; contexts are stack numbers
};

struct Recording {
  std::vector<DeviceRecording> devices;
  std::vector<std::string> names;  // of files and functions, each once; [0] is empty
  std::vector<Frame> frames;
  std::vector<Stack> stacks;  // [0] is the empty stack
  // What tells of the version of PyTorch that wrote it.
  bool names_pools = false;      // of events; from 2.12 on
  bool has_host_memory = false;  // or a place for it; from 2.14 on

  // The snapshot must be a dict as torch.cuda.memory._snapshot() returns it. Time and memory are
  // linear in the document's size, however often it shares its values. Throws RecordingError, and
  // what `poll` throws, which is called every so often.
  [[nodiscard]] static Recording read(const PickleDocument& document,
                                      const std::function<void()>& poll = {});
};

}  // namespace plimsoll
