// Whole allocations, like cudaMalloc's: memory together with its address. Physical memory comes in
// granules of 2 MiB. Several allocations smaller than that can lie in one granule.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "plimsoll/base/units.h"
#include "plimsoll/driver/driver.h"
#include "plimsoll/simulated/address_space.h"
#include "plimsoll/simulated/allocation_addresses.h"
#include "plimsoll/simulated/content.h"
#include "plimsoll/simulated/physical_memory.h"
#include "plimsoll/simulated/virtual_memory.h"

namespace plimsoll {

class Allocations {
 public:
  // `physical` and `mapped` must outlive this object. Addresses come from below `end`, or from
  // `feed`. An address from `feed` is not used if `mapped` has a mapping there.
  Allocations(PhysicalMemory& physical, const VirtualMemory& mapped, Address end)
      : physical_(physical), mapped_(mapped), addresses_(end) {}

  Status allocate(Bytes size, Address& address);
  // Frees the allocation that begins at the address.
  void deallocate(Address address);

  // Makes the next allocation of exactly this size use this address, if the address is free.
  // Several calls queue up, and their addresses are used in order.
  void feed(Address address, Bytes size) { fed_.push_back({address, size}); }
  void forget_fed() { fed_.clear(); }
  void scatter(std::uint64_t seed) { addresses_.scatter(seed); }

  // Returns the size of the allocation at exactly this address; 0 if there is none.
  [[nodiscard]] Bytes size_at(Address address) const;
  [[nodiscard]] std::optional<MemoryPart> part_at(Address address);

 private:
  struct Fed {
    Address address = 0;
    Bytes size = 0;
  };

  [[nodiscard]] std::optional<Address> take_fed_address(Bytes size);
  Status allocate_small(Bytes size, Address& address);
  void give_back_small(Address address, Bytes size);

  PhysicalMemory& physical_;
  const VirtualMemory& mapped_;
  AllocationAddresses addresses_;
  std::deque<Fed> fed_;
  std::map<Address, Physical> large_;
  std::map<Address, Bytes> small_;
  std::map<Address, Physical> granules_;  // granules of small allocations
  AddressSpace free_in_granules_;
  Content content_;  // the content of all allocations, by address
};

}  // namespace plimsoll
