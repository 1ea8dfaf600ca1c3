// Free address ranges. A range can be taken from the lowest or the highest addresses. Adjacent free
// ranges are merged.
#pragma once

#include <map>
#include <optional>

#include "plimsoll/base/units.h"

namespace plimsoll {

class AddressSpace {
 public:
  AddressSpace() = default;
  AddressSpace(Address begin, Bytes size) { give(begin, size); }

  // Takes the lowest free range of `size` bytes that starts at a multiple of `alignment`.
  [[nodiscard]] std::optional<Address> take(Bytes size, Bytes alignment);
  // Takes the highest free range of `size` bytes that starts at a multiple of `alignment`.
  [[nodiscard]] std::optional<Address> take_highest(Bytes size, Bytes alignment);
  // Takes exactly this range. Returns false if any part of it is not free.
  bool take_at(Address address, Bytes size);
  // Takes those parts of the range that are free.
  void take_all_of(Address address, Bytes size);
  void give(Address address, Bytes size);
  [[nodiscard]] bool is_free(Address address, Bytes size) const;

 private:
  std::map<Address, Bytes> free_;
};

}  // namespace plimsoll
