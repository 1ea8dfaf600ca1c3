// A snapshot of an allocator: its segments and their blocks, in the order of their addresses.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "plimsoll/base/units.h"

namespace plimsoll {

// `active_pending_free`: the program freed the block, but another stream may still use it.
enum class BlockState : std::uint8_t { active_allocated, active_pending_free, inactive };

[[nodiscard]] std::string_view to_string(BlockState state);
// Returns the state that PyTorch's snapshots call `word`; nothing if they have no such state.
[[nodiscard]] std::optional<BlockState> parse_block_state(std::string_view word);

struct BlockInfo {
  Address address = 0;
  Bytes size = 0;
  Bytes requested = 0;  // size of the last request; kept when the block is free, as in PyTorch
  BlockState state = BlockState::inactive;
  std::uint32_t context = 0;
  // The part of `size` that lies in shared memory: host memory that the GPU can address.
  Bytes shared = 0;
};

struct SegmentInfo {
  Address address = 0;
  Bytes total_size = 0;
  StreamId stream = 0;
  PoolId pool;
  bool small = false;
  bool expandable = false;
  std::uint32_t context = 0;
  std::vector<BlockInfo> blocks;
  Bytes shared = 0;     // the part of `total_size` that lies in shared memory, as in BlockInfo
  bool paused = false;  // the content is off the card, and the addresses must not be accessed
  // The segments' order of creation: the allocator's first segment has number 1. The mapped ranges
  // of one expandable segment may share a number. 0 if the order is unknown.
  std::uint64_t number = 0;
};

}  // namespace plimsoll
