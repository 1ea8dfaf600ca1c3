// Page-locked host memory: shared memory that the GPUs and the host reach at the same address.
#pragma once

#include <map>
#include <optional>

#include "plimsoll/base/units.h"
#include "plimsoll/driver/driver.h"
#include "plimsoll/simulated/content.h"
#include "plimsoll/simulated/physical_memory.h"

namespace plimsoll {

class PageLockedMemory {
 public:
  // Takes a `physical` that outlives this object.
  explicit PageLockedMemory(PhysicalMemory& physical) : physical_(physical) {}

  Status allocate(Bytes size, Address& address);
  // Frees the allocation that begins at the address.
  void deallocate(Address address);

  // Returns the size of the allocation at exactly this address; 0 if there is none.
  [[nodiscard]] Bytes size_at(Address address) const;
  // Returns the bytes of all allocations.
  [[nodiscard]] Bytes bytes() const { return bytes_; }
  // Returns whether the range begins in an allocation and ends beyond that allocation's end.
  [[nodiscard]] bool leaves_allocation(Address address, Bytes size) const;
  [[nodiscard]] std::optional<MemoryPart> part_at(Address address);

 private:
  PhysicalMemory& physical_;
  std::map<Address, Bytes> allocations_;
  Bytes bytes_ = 0;
  Content content_;  // the content of all allocations, by address
};

}  // namespace plimsoll
