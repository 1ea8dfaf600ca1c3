// Disjoint address ranges, kept in a map. The key is a range's first address. The value is the
// range's size, or an object with a member `size`.
#pragma once

#include <iterator>
#include <map>

#include "plimsoll/base/units.h"

namespace plimsoll {

inline Bytes size_of_range(Bytes size) { return size; }
template <typename Range>
Bytes size_of_range(const Range& range) {
  return range.size;
}

// Returns the iterator of the range that contains the address; `end()` if there is none.
template <typename Ranges>
auto range_at(Ranges& ranges, Address address) {
  auto range = ranges.upper_bound(address);
  if (range == ranges.begin()) return ranges.end();
  --range;
  return address - range->first < size_of_range(range->second) ? range : ranges.end();
}

template <typename Range>
bool overlaps(const std::map<Address, Range>& ranges, Address address, Bytes size) {
  const auto after = ranges.lower_bound(address + size);
  if (after == ranges.begin()) return false;
  const auto& [begin, range] = *std::prev(after);
  return begin + size_of_range(range) > address;
}

}  // namespace plimsoll
