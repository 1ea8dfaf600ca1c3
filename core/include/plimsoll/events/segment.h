// The state of an allocator at one moment: its segments and their blocks, by address.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "plimsoll/base/units.h"

namespace plimsoll {

// `pending_free`: freed by the program, but another stream may still use it.
enum class BlockState : std::uint8_t { active_allocated, active_pending_free, inactive };

[[nodiscard]] std::string_view to_string(BlockState state);
// The state that a word of PyTorch's snapshots names; nothing for an unknown word.
[[nodiscard]] std::optional<BlockState> parse_block_state(std::string_view word);

struct BlockInfo {
  Address address = 0;
  Bytes size = 0;
  Bytes requested = 0;  // of the last request; a free block keeps its last owner's, as in PyTorch
  BlockState state = BlockState::inactive;
  std::uint32_t context = 0;
  Bytes shared = 0;  // of `size`, in shared memory
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
  Bytes shared = 0;     // of `total_size`, in shared memory
  bool paused = false;  // its content is off the card, and its addresses must not be touched
};

}  // namespace plimsoll
