// Restores a recorded state: segments and their blocks at their recorded addresses. The allocator
// makes no decisions of its own during the restore.
#pragma once

#include <vector>

#include "plimsoll/allocator/native/native.h"
#include "plimsoll/simulated/driver.h"

namespace plimsoll {

class StateRestorer {
 public:
  // Takes an empty allocator and its driver.
  StateRestorer(NativeAllocator& allocator, SimulatedDriver& driver)
      : allocator_(allocator), driver_(driver) {}

  // Restores segments. They must be sorted by address, and the blocks of each segment must fill it
  // without gaps. Returns the active blocks, sorted by address. Blocks in the state
  // `active_pending_free` are restored as allocated, too. Throws std::invalid_argument if the state
  // is impossible.
  std::vector<Block*> restore(const std::vector<SegmentInfo>& segments);

 private:
  [[nodiscard]] Block* take(const SegmentInfo& segment, const NativeRequest& request);
  [[nodiscard]] Block* grow(const SegmentInfo& segment, const NativeRequest& request);

  NativeAllocator& allocator_;
  SimulatedDriver& driver_;
};

}  // namespace plimsoll
