#include "plimsoll/allocator/imported_memory.h"

#include "plimsoll/allocator/allocator.h"

namespace plimsoll {

Address ImportedMemory::open(std::span<const Piece> pieces) {
  Bytes size = 0;
  for (const Piece& piece : pieces) size += piece.size;
  Address address = 0;
  if (const Status status = driver_.reserve(size, address); status != Status::success) {
    throw DriverError("reserve addresses", status, driver_.last_error());
  }
  Bytes mapped = 0;
  Status status = Status::success;
  for (const Piece& piece : pieces) {
    status = map(address + mapped, piece);
    if (status != Status::success) break;
    mapped += piece.size;
  }
  if (status == Status::success) status = driver_.set_access(address, size);
  if (status != Status::success) {
    const std::string reason = driver_.last_error();
    if (mapped > 0) driver_.unmap(address, mapped);
    driver_.unreserve(address, size);
    throw DriverError("map another process's memory", status, reason);
  }
  const std::lock_guard lock(mutex_);
  open_.emplace(address, size);
  return address;
}

// Maps another process's memory at `address`. Releases the handle, because the mapping alone keeps
// the memory.
Status ImportedMemory::map(Address address, const Piece& piece) {
  Handle handle = 0;
  Status status = driver_.import_handle(piece.descriptor, handle);
  if (status != Status::success) return status;
  status = driver_.map(address, piece.size, handle);
  driver_.release(handle);
  return status;
}

bool ImportedMemory::close(Address address) {
  const std::lock_guard lock(mutex_);
  const auto entry = open_.find(address);
  if (entry == open_.end()) return false;
  if (const Status status = driver_.unmap(address, entry->second); status != Status::success) {
    throw DriverError("unmap another process's memory", status, driver_.last_error());
  }
  driver_.unreserve(address, entry->second);
  open_.erase(entry);
  return true;
}

}  // namespace plimsoll
