// Puts a recorded state in place: segments and their blocks, where they were, without asking the
// allocator for any decision.
#pragma once

#include <vector>

#include "plimsoll/allocator/native/native.h"
#include "plimsoll/simulated/driver.h"

namespace plimsoll {

class StateRestorer {
 public:
  // The allocator, which is empty, works over the driver.
  StateRestorer(NativeAllocator& allocator, SimulatedDriver& driver)
      : allocator_(allocator), driver_(driver) {}

  // Segments ascend by address, and the blocks of each make it up. Returns the active blocks by
  // address, as allocated ones. Throws std::invalid_argument if the state is not possible.
  std::vector<Block*> restore(const std::vector<SegmentInfo>& segments);

 private:
  [[nodiscard]] Block* take(const SegmentInfo& segment, const NativeRequest& request);
  [[nodiscard]] Block* grow(const SegmentInfo& segment, const NativeRequest& request);

  NativeAllocator& allocator_;
  SimulatedDriver& driver_;
};

}  // namespace plimsoll
