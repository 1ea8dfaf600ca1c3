#include "plimsoll/simulated/allocations.h"

#include <algorithm>

#include "plimsoll/simulated/ranges.h"

namespace plimsoll {
namespace {

constexpr Bytes kSmallAlignment = 512;

}  // namespace

// Allocates memory. While addresses from `feed` wait to be used, even a small allocation takes
// whole granules, because `feed` got the addresses of recorded segments.
Status Allocations::allocate(Bytes size, Address& address) {
  if (size < kGranule && fed_.empty()) return allocate_small(size, address);
  const auto physical = physical_.take(round_up(size, kGranule), Tier::dedicated);
  if (!physical) return Status::out_of_memory;
  const auto fed = take_fed_address(physical->size);
  address = fed ? *fed : addresses_.take(physical->size);
  large_.emplace(address, *physical);
  return Status::success;
}

std::optional<Address> Allocations::take_fed_address(Bytes size) {
  if (fed_.empty() || fed_.front().size != size) return std::nullopt;
  const Address address = fed_.front().address;
  fed_.pop_front();
  const bool is_free = !overlaps(large_, address, size) && !mapped_.is_mapped(address, size) &&
                       addresses_.take_at(address, size);
  return is_free ? std::optional(address) : std::nullopt;
}

Status Allocations::allocate_small(Bytes size, Address& address) {
  size = round_up(size, kSmallAlignment);
  auto place = free_in_granules_.take(size, kSmallAlignment);
  if (!place) {
    const auto physical = physical_.take(kGranule, Tier::dedicated);
    if (!physical) return Status::out_of_memory;
    const Address granule = addresses_.take(kGranule);
    granules_.emplace(granule, *physical);
    free_in_granules_.give(granule, kGranule);
    place = free_in_granules_.take(size, kSmallAlignment);
  }
  address = *place;
  small_.emplace(address, size);
  return Status::success;
}

// Gives back a small allocation, and each granule that is wholly free then. The allocation may
// extend over two adjacent granules.
void Allocations::give_back_small(Address address, Bytes size) {
  free_in_granules_.give(address, size);
  for (Address granule = round_down(address, kGranule); granule < address + size;
       granule += kGranule) {
    if (!free_in_granules_.take_at(granule, kGranule)) continue;
    physical_.give_back(granules_.at(granule));
    granules_.erase(granule);
    addresses_.give(granule, kGranule);
  }
}

void Allocations::deallocate(Address address) {
  const Bytes size = size_at(address);
  content_.write(address, address + size, 0);
  if (small_.erase(address) > 0) return give_back_small(address, size);
  physical_.give_back(large_.at(address));
  addresses_.give(address, size);
  large_.erase(address);
}

Bytes Allocations::size_at(Address address) const {
  if (const auto small = small_.find(address); small != small_.end()) return small->second;
  const auto large = large_.find(address);
  return large == large_.end() ? 0 : large->second.size;
}

std::optional<MemoryPart> Allocations::part_at(Address address) {
  if (const auto large = range_at(large_, address); large != large_.end()) {
    const auto& [begin, physical] = *large;
    return physical.part(content_, address, address - begin, physical.size);
  }
  const auto small = range_at(small_, address);
  if (small == small_.end()) return std::nullopt;
  const Address granule = round_down(address, kGranule);
  const Bytes end = std::min(small->first + small->second, granule + kGranule) - granule;
  return granules_.at(granule).part(content_, address, address - granule, end);
}

}  // namespace plimsoll
