#include "plimsoll/simulated/physical_memory.h"

#include <algorithm>

namespace plimsoll {

MemoryPart Physical::part(Content& content, Address offset, Bytes begin, Bytes end) const {
  if (begin >= dedicated) return {&content, offset, end - begin, Tier::shared};
  return {&content, offset, std::min(end, dedicated) - begin, Tier::dedicated};
}

MemoryInfo PhysicalMemory::dedicated_info() const {
  MemoryInfo info = dedicated_;
  if (card_ != nullptr) info.used_by_others = std::min(info.free, card_->used_by_others());
  info.free -= info.used_by_others;
  return info;
}

std::optional<Physical> PhysicalMemory::take(Bytes size, Tier tier) {
  Physical physical{size, 0, 0};
  if (tier == Tier::shared) {
    physical.shared = size;
  } else if (model_ == DriverModel::wddm) {
    physical.dedicated = std::min(size, round_down(dedicated_info().free, kGranule));
    physical.shared = size - physical.dedicated;
  } else {
    physical.dedicated = size;
  }
  if (physical.dedicated > dedicated_.free || physical.shared > shared_info().free) {
    return std::nullopt;
  }
  if (card_ != nullptr && !card_->take(physical.dedicated, dedicated_.total)) return std::nullopt;
  dedicated_.free -= physical.dedicated;
  most_dedicated_used_ = std::max(most_dedicated_used_, dedicated_used());
  shared_used_ += physical.shared;
  host_.take_shared(physical.shared);
  return physical;
}

void PhysicalMemory::give_back(const Physical& physical) {
  dedicated_.free += physical.dedicated;
  if (card_ != nullptr) card_->give_back(physical.dedicated);
  shared_used_ -= physical.shared;
  host_.give_back_shared(physical.shared);
}

}  // namespace plimsoll
