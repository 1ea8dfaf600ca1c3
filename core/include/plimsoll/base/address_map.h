// A map from addresses to small values, by open addressing. Once it is large enough, it allocates
// nothing on the heap.
#pragma once

#include <cstddef>
#include <vector>

#include "plimsoll/base/units.h"

namespace plimsoll {

template <typename Value>
class AddressMap {
 public:
  AddressMap() : entries_(kFirstCapacity) {}

  // Adds or replaces the value of an address, which must not be 0.
  void insert(Address address, Value value) {
    if ((size_ + 1) * 2 > entries_.size()) grow();
    std::size_t place = home(address);
    while (entries_[place].address != 0 && entries_[place].address != address) {
      place = after(place);
    }
    if (entries_[place].address == 0) ++size_;
    entries_[place] = {address, value};
  }

  [[nodiscard]] const Value* find(Address address) const {
    for (std::size_t place = home(address); entries_[place].address != 0; place = after(place)) {
      if (entries_[place].address == address) return &entries_[place].value;
    }
    return nullptr;
  }

  // Erases the value of an address. A search ends at the first empty entry, so this also moves the
  // later entries that a search would no longer reach.
  bool erase(Address address) {
    const Value* const found = find(address);
    if (found == nullptr) return false;
    erase(found);
    return true;
  }

  // Erases the entry of a value that `find` returned; the map must not have changed since.
  void erase(const Value* found) {
    const auto bytes = reinterpret_cast<const char*>(found) -
                       reinterpret_cast<const char*>(&entries_.front().value);
    std::size_t gap = static_cast<std::size_t>(bytes) / sizeof(Entry);
    for (std::size_t place = after(gap); entries_[place].address != 0; place = after(place)) {
      const std::size_t from_home = (place - home(entries_[place].address)) & mask();
      if (from_home >= ((place - gap) & mask())) {
        entries_[gap] = entries_[place];
        gap = place;
      }
    }
    entries_[gap] = {};
    --size_;
  }

  [[nodiscard]] std::size_t size() const { return size_; }

  template <typename Function>
  void for_each(Function function) const {
    for (const Entry& entry : entries_) {
      if (entry.address != 0) function(entry.address, entry.value);
    }
  }

 private:
  static constexpr std::size_t kFirstCapacity = 1024;

  struct Entry {
    Address address = 0;
    Value value{};
  };

  [[nodiscard]] std::size_t mask() const { return entries_.size() - 1; }
  [[nodiscard]] std::size_t after(std::size_t place) const { return (place + 1) & mask(); }
  [[nodiscard]] std::size_t home(Address address) const {
    return static_cast<std::size_t>((address * 0x9E3779B97F4A7C15u) >> 20) & mask();
  }

  void grow() {
    std::vector<Entry> old(entries_.size() * 2);
    old.swap(entries_);
    size_ = 0;
    for (const Entry& entry : old) {
      if (entry.address != 0) insert(entry.address, entry.value);
    }
  }

  std::vector<Entry> entries_;
  std::size_t size_ = 0;
};

}  // namespace plimsoll
