// The content of simulated memory: a 64-bit tag for each byte, stored as intervals. All tags are 0
// at first.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>

#include "plimsoll/base/units.h"
#include "plimsoll/driver/driver.h"

namespace plimsoll {

class Content {
 public:
  [[nodiscard]] std::uint64_t at(Address offset) const {
    const auto after = changes_.upper_bound(offset);
    return after == changes_.begin() ? 0 : std::prev(after)->second;
  }

  // Returns the offset at which the tag next changes after `offset`, at most `limit`.
  [[nodiscard]] Address end_of(Address offset, Address limit) const {
    const auto after = changes_.upper_bound(offset);
    return after == changes_.end() || after->first > limit ? limit : after->first;
  }

  void write(Address begin, Address end, std::uint64_t tag) {
    if (begin == end) return;
    const std::uint64_t behind = at(end);
    changes_.erase(changes_.lower_bound(begin), changes_.upper_bound(end));
    if (tag != at(begin)) changes_.emplace(begin, tag);
    if (tag != behind) changes_.emplace(end, behind);
  }

 private:
  // Each key is an offset, and its value is the tag of all bytes from there up to the next key.
  std::map<Address, std::uint64_t> changes_;
};

// A range of memory that lies in one tier, and the place where its content is stored.
struct MemoryPart {
  Content* content = nullptr;
  Address offset = 0;  // where the tags of this memory begin in `content`
  Bytes size = 0;
  Tier tier = Tier::dedicated;
};

}  // namespace plimsoll
