#include "plimsoll/simulated/address_space.h"

#include <algorithm>
#include <iterator>

namespace plimsoll {

std::optional<Address> AddressSpace::take(Bytes size, Bytes alignment) {
  for (const auto& [begin, length] : free_) {
    const Address aligned = round_up(begin, alignment);
    if (aligned - begin < length && begin + length - aligned >= size) {
      take_at(aligned, size);
      return aligned;
    }
  }
  return std::nullopt;
}

std::optional<Address> AddressSpace::take_highest(Bytes size, Bytes alignment) {
  for (auto range = free_.rbegin(); range != free_.rend(); ++range) {
    const auto& [begin, length] = *range;
    if (length < size) continue;
    const Address aligned = round_down(begin + length - size, alignment);
    if (aligned < begin) continue;
    take_at(aligned, size);
    return aligned;
  }
  return std::nullopt;
}

bool AddressSpace::is_free(Address address, Bytes size) const {
  auto after = free_.upper_bound(address);
  if (after == free_.begin()) return false;
  const auto& [begin, length] = *std::prev(after);
  return address + size <= begin + length;
}

void AddressSpace::take_all_of(Address address, Bytes size) {
  const Address end = address + size;
  auto range = free_.upper_bound(address);
  if (range != free_.begin()) --range;
  while (range != free_.end() && range->first < end) {
    const Address from = std::max(range->first, address);
    const Address to = std::min(range->first + range->second, end);
    ++range;  // advance first: take_at replaces the range
    if (from < to) take_at(from, to - from);
  }
}

bool AddressSpace::take_at(Address address, Bytes size) {
  if (!is_free(address, size)) return false;
  const auto range = std::prev(free_.upper_bound(address));
  const auto [begin, length] = *range;
  free_.erase(range);
  if (begin < address) free_.emplace(begin, address - begin);
  const Address end = begin + length;
  if (address + size < end) free_.emplace(address + size, end - (address + size));
  return true;
}

void AddressSpace::give(Address address, Bytes size) {
  if (size == 0) return;
  auto next = free_.lower_bound(address);
  if (next != free_.end() && next->first == address + size) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == address) {
      previous->second += size;
      return;
    }
  }
  free_.emplace(address, size);
}

}  // namespace plimsoll
