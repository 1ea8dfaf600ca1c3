#include "plimsoll/simulated/virtual_memory.h"

#include <iterator>

#include "plimsoll/simulated/ranges.h"

namespace plimsoll {
namespace {

bool is_granular(Address address, Bytes size) {
  return size > 0 && address % kGranule == 0 && size % kGranule == 0;
}

}  // namespace

std::optional<Address> VirtualMemory::take_addresses(Bytes size) {
  if (fed_.empty()) return free_.take(size, kGranule);
  const Address address = fed_.front();
  fed_.pop_front();
  free_.take_all_of(address, size);
  return address;
}

Status VirtualMemory::reserve(Bytes size, Address& address) {
  if (!is_granular(0, size)) return Status::invalid_value;
  const auto place = take_addresses(size);
  if (!place) return Status::out_of_memory;
  address = *place;
  reservations_[address] = size;
  return Status::success;
}

Status VirtualMemory::unreserve(Address address, Bytes size) {
  const auto reservation = reservations_.find(address);
  if (reservation == reservations_.end() || reservation->second != size ||
      mappings_in(address, size) > 0) {
    return Status::invalid_value;
  }
  reservations_.erase(reservation);
  // Addresses from `feed` lie below `first_` and do not come from `free_`.
  if (address >= first_) free_.give(address, size);
  return Status::success;
}

Status VirtualMemory::create(Bytes size, Tier tier, Handle& handle) {
  if (!is_granular(0, size)) return Status::invalid_value;
  const auto physical = physical_.take(size, tier);
  if (!physical) return Status::out_of_memory;
  handle = next_handle_++;
  handles_.emplace(handle, Memory{*physical, 0, false, {}});
  return Status::success;
}

Status VirtualMemory::release(Handle handle) {
  const auto memory = handles_.find(handle);
  if (memory == handles_.end() || memory->second.released) return Status::invalid_value;
  memory->second.released = true;
  if (memory->second.mappings == 0) {
    physical_.give_back(memory->second.physical);
    handles_.erase(memory);
  }
  return Status::success;
}

Status VirtualMemory::map(Address address, Bytes size, Handle handle) {
  const auto memory = handles_.find(handle);
  if (!is_granular(address, size) || memory == handles_.end() || memory->second.released ||
      memory->second.physical.size != size) {
    return Status::invalid_value;
  }
  const auto reservation = range_at(reservations_, address);
  if (reservation == reservations_.end() ||
      address + size > reservation->first + reservation->second || is_mapped(address, size)) {
    return Status::invalid_value;
  }
  mappings_.emplace(address, Mapping{size, handle, false});
  ++memory->second.mappings;
  return Status::success;
}

Status VirtualMemory::set_access(Address address, Bytes size) {
  if (!is_granular(address, size)) return Status::invalid_value;
  const auto first = mappings_.lower_bound(address);
  const auto last = mappings_.lower_bound(address + size);
  if (first == last) return Status::invalid_value;
  for (auto it = first; it != last; ++it) it->second.accessible = true;
  return Status::success;
}

void VirtualMemory::forget_mapping_of(Handle handle) {
  const auto memory = handles_.find(handle);
  if (--memory->second.mappings == 0 && memory->second.released) {
    physical_.give_back(memory->second.physical);
    handles_.erase(memory);
  }
}

Status VirtualMemory::unmap(Address address, Bytes size) {
  if (!is_granular(address, size)) return Status::invalid_value;
  const auto first = mappings_.lower_bound(address);
  if (first != mappings_.begin()) {
    const auto& [begin, mapping] = *std::prev(first);
    if (begin + mapping.size > address) return Status::invalid_value;
  }
  const auto last = mappings_.lower_bound(address + size);
  if (first == last) return Status::invalid_value;
  if (const auto& [begin, mapping] = *std::prev(last); begin + mapping.size > address + size) {
    return Status::invalid_value;
  }
  for (auto it = first; it != last; ++it) forget_mapping_of(it->second.handle);
  mappings_.erase(first, last);
  return Status::success;
}

Bytes VirtualMemory::reserved_addresses() const {
  Bytes bytes = 0;
  for (const auto& [address, size] : reservations_) bytes += size;
  return bytes;
}

Bytes VirtualMemory::size_of(Handle handle) const {
  const auto memory = handles_.find(handle);
  return memory == handles_.end() ? 0 : memory->second.physical.size;
}

std::size_t VirtualMemory::mappings_in(Address address, Bytes size) const {
  std::size_t count = 0;
  for (auto it = mappings_.lower_bound(address);
       it != mappings_.end() && it->first < address + size; ++it) {
    ++count;
  }
  return count;
}

bool VirtualMemory::is_mapped(Address address, Bytes size) const {
  return overlaps(mappings_, address, size);
}

std::optional<MemoryPart> VirtualMemory::part_at(Address address) {
  const auto mapping = range_at(mappings_, address);
  if (mapping == mappings_.end() || !mapping->second.accessible) return std::nullopt;
  Memory& memory = handles_.at(mapping->second.handle);
  const Bytes begin = address - mapping->first;
  return memory.physical.part(memory.content, begin, begin, mapping->second.size);
}

}  // namespace plimsoll
