// Copies queued on streams. Until a copy is complete, neither of its ranges may be freed or
// unmapped.
#pragma once

#include <algorithm>
#include <vector>

#include "plimsoll/base/units.h"
#include "plimsoll/simulated/streams.h"

namespace plimsoll {

class QueuedCopies {
 public:
  // Takes `streams` that outlive this object.
  explicit QueuedCopies(const Streams& streams) : streams_(streams) {}

  void add(Address to, Address from, Bytes size, const StreamPoint& done) {
    forget_complete();
    copies_.push_back({to, from, size, done});
  }

  // Returns whether a queued copy reads or writes a part of the range.
  [[nodiscard]] bool use(Address address, Bytes size) {
    forget_complete();
    return std::ranges::any_of(copies_, [&](const Copy& copy) {
      const auto overlaps = [&](Address begin) {
        return begin < address + size && address < begin + copy.size;
      };
      return overlaps(copy.to) || overlaps(copy.from);
    });
  }

 private:
  struct Copy {
    Address to = 0;
    Address from = 0;
    Bytes size = 0;
    StreamPoint done;
  };

  void forget_complete() {
    std::erase_if(copies_, [&](const Copy& copy) { return streams_.is_complete(copy.done); });
  }

  const Streams& streams_;
  std::vector<Copy> copies_;
};

}  // namespace plimsoll
