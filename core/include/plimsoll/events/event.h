// One entry of a memory history. Actions have the names and meanings of PyTorch's snapshots.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "plimsoll/base/units.h"

namespace plimsoll {

// A columnar trace stores each action as its position in this list: append new actions, and never
// reorder.
enum class Action : std::uint8_t {
  alloc,           // size: the bytes requested, before rounding
  free_requested,  // size: the bytes requested
  free_completed,  // the block may be used again
  segment_alloc,
  segment_free,
  segment_map,
  segment_unmap,
  snapshot,
  oom,  // `address` holds the device's number of free bytes, `size` the rounded request
};
inline constexpr std::size_t kActionCount = 9;

[[nodiscard]] std::string_view to_string(Action action);
[[nodiscard]] std::optional<Action> action_from(std::string_view name);

struct TraceEvent {
  Action action = Action::alloc;
  Address address = 0;
  Bytes size = 0;
  StreamId stream = 0;
  PoolId pool;
  std::int64_t time_us = 0;
  std::uint32_t context = 0;  // the caller's number for a call stack; 0 is none
  // The part of `size` that lies in shared memory: host memory that the GPU can address.
  Bytes shared = 0;
};

}  // namespace plimsoll
