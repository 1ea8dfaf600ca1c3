#include "plimsoll/simulated/page_locked_memory.h"

#include "plimsoll/simulated/ranges.h"

namespace plimsoll {
namespace {

constexpr Address kFirstHostAddress = Address{0x2} << 40;
constexpr Bytes kHostPage = 4 * kKiB;

}  // namespace

Status PageLockedMemory::allocate(Bytes size, Address& address) {
  if (size == 0) return Status::invalid_value;
  if (size > physical_.shared_info().total) return Status::out_of_memory;
  const Bytes rounded = round_up(size, kHostPage);
  if (!physical_.take(rounded, Tier::shared)) return Status::out_of_memory;
  address = allocations_.empty() ? kFirstHostAddress
                                 : allocations_.rbegin()->first + allocations_.rbegin()->second;
  allocations_.emplace(address, rounded);
  bytes_ += rounded;
  return Status::success;
}

void PageLockedMemory::deallocate(Address address) {
  const auto allocation = allocations_.find(address);
  const Bytes size = allocation->second;
  physical_.give_back({size, 0, size});
  bytes_ -= size;
  content_.write(address, address + size, 0);
  allocations_.erase(allocation);
}

Bytes PageLockedMemory::size_at(Address address) const {
  const auto allocation = allocations_.find(address);
  return allocation == allocations_.end() ? 0 : allocation->second;
}

bool PageLockedMemory::leaves_allocation(Address address, Bytes size) const {
  const auto allocation = range_at(allocations_, address);
  return allocation != allocations_.end() &&
         address + size > allocation->first + allocation->second;
}

std::optional<MemoryPart> PageLockedMemory::part_at(Address address) {
  const auto allocation = range_at(allocations_, address);
  if (allocation == allocations_.end()) return std::nullopt;
  const auto& [begin, size] = *allocation;
  return MemoryPart{&content_, address, begin + size - address, Tier::shared};
}

}  // namespace plimsoll
