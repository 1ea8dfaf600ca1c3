// Finds the row for a key in a table that may lack that key.
#pragma once

#include <algorithm>
#include <iterator>

namespace plimsoll::simulated {

// Returns the last row whose key is at most `wanted`; the first row if there is none. Rows must be
// in ascending order of their keys.
template <typename Row, std::size_t count, typename Wanted, typename Key>
const Row& nearest(const Row (&rows)[count], const Wanted& wanted, Key key) {
  const Row* const above =
      std::upper_bound(std::begin(rows), std::end(rows), wanted,
                       [&](const Wanted& value, const Row& row) { return value < key(row); });
  return above == std::begin(rows) ? *above : *(above - 1);
}

}  // namespace plimsoll::simulated
