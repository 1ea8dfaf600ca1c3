#include "plimsoll/events/segment.h"

namespace plimsoll {

std::string_view to_string(BlockState state) {
  switch (state) {
    case BlockState::active_allocated: return "active_allocated";
    case BlockState::active_pending_free: return "active_pending_free";
    case BlockState::inactive: return "inactive";
  }
  return "unknown";
}

std::optional<BlockState> parse_block_state(std::string_view word) {
  for (const BlockState state :
       {BlockState::active_allocated, BlockState::active_pending_free, BlockState::inactive}) {
    if (word == to_string(state)) return state;
  }
  // PyTorch's documentation calls this state "active_awaiting_free"; its snapshots contain
  // "active_pending_free".
  if (word == "active_awaiting_free") return BlockState::active_pending_free;
  return std::nullopt;
}

}  // namespace plimsoll
