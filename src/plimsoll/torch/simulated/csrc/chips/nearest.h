// Finds the row of a table for a key that the table may lack.
#pragma once

#include <algorithm>
#include <iterator>

namespace plimsoll::simulated {

// Returns the last row whose key is not above `wanted`, or the first row. Rows are in ascending
// order.
template <typename Row, std::size_t count, typename Wanted, typename Key>
const Row& nearest(const Row (&rows)[count], const Wanted& wanted, Key key) {
  const Row* const above =
      std::upper_bound(std::begin(rows), std::end(rows), wanted,
                       [&](const Wanted& value, const Row& row) { return value < key(row); });
  return above == std::begin(rows) ? *above : *(above - 1);
}

}  // namespace plimsoll::simulated
