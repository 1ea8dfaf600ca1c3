// Virtual memory management: reserved addresses, handles of physical memory, and the mappings of
// handles into reservations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>

#include "plimsoll/base/units.h"
#include "plimsoll/driver/driver.h"
#include "plimsoll/simulated/address_space.h"
#include "plimsoll/simulated/content.h"
#include "plimsoll/simulated/physical_memory.h"

namespace plimsoll {

class VirtualMemory {
 public:
  // Takes a `physical` that outlives this object. Addresses come from [`begin`, `begin` + `size`).
  VirtualMemory(PhysicalMemory& physical, Address begin, Bytes size)
      : physical_(physical), first_(begin), free_(begin, size) {}

  Status reserve(Bytes size, Address& address);
  Status unreserve(Address address, Bytes size);
  Status create(Bytes size, Tier tier, Handle& handle);
  Status release(Handle handle);
  Status map(Address address, Bytes size, Handle handle);
  Status set_access(Address address, Bytes size);
  Status unmap(Address address, Bytes size);

  // Makes the next reservation use this address. Several calls queue up.
  void feed(Address address) { fed_.push_back(address); }
  void forget_fed() { fed_.clear(); }

  [[nodiscard]] std::size_t reservations() const { return reservations_.size(); }
  [[nodiscard]] std::size_t handles() const { return handles_.size(); }
  [[nodiscard]] std::size_t mappings() const { return mappings_.size(); }
  [[nodiscard]] Bytes reserved_addresses() const;
  // Returns the size of a handle's memory; 0 if the handle does not exist.
  [[nodiscard]] Bytes size_of(Handle handle) const;
  // Returns the number of mappings that begin in the range.
  [[nodiscard]] std::size_t mappings_in(Address address, Bytes size) const;
  [[nodiscard]] bool is_mapped(Address address, Bytes size) const;
  // Returns the memory at an address; nothing if the GPU cannot access memory there.
  [[nodiscard]] std::optional<MemoryPart> part_at(Address address);

 private:
  struct Memory {  // the physical memory of a handle
    Physical physical;
    std::uint32_t mappings = 0;
    bool released = false;
    Content content;
  };
  struct Mapping {
    Bytes size = 0;
    Handle handle = 0;
    bool accessible = false;
  };

  [[nodiscard]] std::optional<Address> take_addresses(Bytes size);
  void forget_mapping_of(Handle handle);

  PhysicalMemory& physical_;
  Address first_;
  AddressSpace free_;
  std::deque<Address> fed_;
  std::map<Address, Bytes> reservations_;
  std::map<Address, Mapping> mappings_;
  std::unordered_map<Handle, Memory> handles_;
  Handle next_handle_ = 1;
};

}  // namespace plimsoll
