// Counts, by size, an arena's freed blocks that other streams still use. If none of these blocks
// has exactly the size of a request, the allocator need not ask the driver about the streams.
#pragma once

#include <cstdint>

#include "plimsoll/base/address_map.h"
#include "plimsoll/base/units.h"

namespace plimsoll {

class WaitingSizes {
 public:
  void add(Bytes size) { counts_.insert(size, count(size) + 1); }
  void remove(Bytes size) {
    const std::uint32_t others = count(size) - 1;
    if (others == 0) {
      counts_.erase(size);
    } else {
      counts_.insert(size, others);
    }
  }
  [[nodiscard]] bool is_empty() const { return counts_.size() == 0; }
  [[nodiscard]] bool has(Bytes size) const {
    return counts_.size() != 0 && counts_.find(size) != nullptr;
  }
  // Returns the number of waiting blocks of this size.
  [[nodiscard]] std::uint32_t count(Bytes size) const {
    const std::uint32_t* const found = counts_.find(size);
    return found == nullptr ? 0 : *found;
  }
  [[nodiscard]] bool operator==(const WaitingSizes& other) const {
    bool is_equal = counts_.size() == other.counts_.size();
    counts_.for_each([&](Bytes size, std::uint32_t n) { is_equal &= other.count(size) == n; });
    return is_equal;
  }

 private:
  AddressMap<std::uint32_t> counts_;  // number of waiting blocks, by size
};

}  // namespace plimsoll
