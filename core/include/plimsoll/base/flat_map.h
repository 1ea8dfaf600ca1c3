// A map by address whose entries lie side by side, in order. Lookup and iteration are fast; adding
// or erasing an entry moves all entries behind it, and invalidates iterators. The interface is that
// of std::flat_map, which C++20 does not have yet.
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

  // Returns the first entry at `address` or above.
  [[nodiscard]] iterator lower_bound(Address address) {
    return std::ranges::lower_bound(entries_, address, {}, &Entries::value_type::first);
  }
  [[nodiscard]] const_iterator lower_bound(Address address) const {
    return std::ranges::lower_bound(entries_, address, {}, &Entries::value_type::first);
  }
  // Returns the first entry above `address`.
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

  // Returns the value at the address, and adds a new value if there is none.
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
