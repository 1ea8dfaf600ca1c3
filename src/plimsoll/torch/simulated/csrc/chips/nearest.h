// The row of a table that serves what the table may lack.
#pragma once

#include <algorithm>
#include <iterator>

namespace plimsoll::simulated {

// The last row whose key is not above, or else the first one. Rows are in ascending order.
template <typename Row, std::size_t count, typename Wanted, typename Key>
const Row& nearest(const Row (&rows)[count], const Wanted& wanted, Key key) {
  const Row* const above =
      std::upper_bound(std::begin(rows), std::end(rows), wanted,
                       [&](const Wanted& value, const Row& row) { return value < key(row); });
  return above == std::begin(rows) ? *above : *(above - 1);
}

}  // namespace plimsoll::simulated
