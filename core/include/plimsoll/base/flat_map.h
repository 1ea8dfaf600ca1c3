// A map by address whose entries lie side by side, in order: quick to look in and to walk through,
// while adding or erasing one moves all that lie behind it. As std::flat_map, which C++20 lacks;
// both invalidate iterators.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "plimsoll/base/units.h"

namespace plimsoll {

template <typename Value>
class FlatMap {
 public:
  using Entries = std::vector<std::pair<Address, Value>>;
  using iterator = Entries::iterator;
  using const_iterator = Entries::const_iterator;

  [[nodiscard]] iterator begin() { return entries_.begin(); }
  [[nodiscard]] iterator end() { return entries_.end(); }
  [[nodiscard]] const_iterator begin() const { return entries_.begin(); }
  [[nodiscard]] const_iterator end() const { return entries_.end(); }

  // The first at `address` or above.
  [[nodiscard]] iterator lower_bound(Address address) {
    return std::ranges::lower_bound(entries_, address, {}, &Entries::value_type::first);
  }
  [[nodiscard]] const_iterator lower_bound(Address address) const {
    return std::ranges::lower_bound(entries_, address, {}, &Entries::value_type::first);
  }
  // The first above `address`.
  [[nodiscard]] iterator upper_bound(Address address) {
    return std::ranges::upper_bound(entries_, address, {}, &Entries::value_type::first);
  }
  [[nodiscard]] const_iterator upper_bound(Address address) const {
    return std::ranges::upper_bound(entries_, address, {}, &Entries::value_type::first);
  }
  [[nodiscard]] iterator find(Address address) {
    const iterator found = lower_bound(address);
    return found != end() && found->first == address ? found : end();
  }
  [[nodiscard]] const_iterator find(Address address) const {
    const const_iterator found = lower_bound(address);
    return found != end() && found->first == address ? found : end();
  }

  // What is there, or a new value.
  Value& operator[](Address address) {
    iterator found = lower_bound(address);
    if (found == end() || found->first != address) {
      found = entries_.emplace(found, address, Value{});
    }
    return found->second;
  }
  void erase(iterator entry) { entries_.erase(entry); }

 private:
  Entries entries_;
};

}  // namespace plimsoll
