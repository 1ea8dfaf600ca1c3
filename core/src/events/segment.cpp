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

}  // namespace plimsoll
