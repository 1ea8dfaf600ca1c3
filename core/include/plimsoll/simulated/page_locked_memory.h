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
  // `physical` outlives this.
  explicit PageLockedMemory(PhysicalMemory& physical) : physical_(physical) {}

  Status allocate(Bytes size, Address& address);
  // The address is one of an allocation.
  void deallocate(Address address);

  // Of the allocation at this very address; 0 where there is none.
  [[nodiscard]] Bytes size_at(Address address) const;
  // Of all allocations.
  [[nodiscard]] Bytes bytes() const { return bytes_; }
  // Whether the bytes begin in an allocation and go on behind its end.
  [[nodiscard]] bool leaves_allocation(Address address, Bytes size) const;
  [[nodiscard]] std::optional<MemoryPart> part_at(Address address);

 private:
  PhysicalMemory& physical_;
  std::map<Address, Bytes> allocations_;
  Bytes bytes_ = 0;
  Content content_;  // by address
};

}  // namespace plimsoll
