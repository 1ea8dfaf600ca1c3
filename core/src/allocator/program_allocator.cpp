#include "plimsoll/allocator/program_allocator.h"

#include <stdexcept>

#include "plimsoll/allocator/pool.h"

namespace plimsoll {
namespace {

Location location_of(const Block* block) {
  Location found;
  found.block = found.segment = block->address;
  found.block_size = found.segment_size = block->size;
  found.requested = block->requested;
  found.stream = block->stream;
  found.pool = block->pool->id();
  found.is_virtual = block->expandable != nullptr;
  if (found.is_virtual) return found;
  for (const Block* b = block->previous; b != nullptr; b = b->previous) {
    found.segment = b->address;
    found.segment_size += b->size;
  }
  for (const Block* b = block->next; b != nullptr; b = b->next) found.segment_size += b->size;
  return found;
}

}  // namespace

Block* LockedAllocator::find(Address address) const {
  Block* const* const found = live_.find(address);
  return found == nullptr ? nullptr : *found;
}

Address LockedAllocator::allocate(Bytes size, StreamId stream) {
  const std::lock_guard lock(mutex_);
  Block* const block = allocator_->malloc(size, stream);
  live_.insert(block->address, block);
  return block->address;
}

void LockedAllocator::allocate_at(Address address, Bytes size, StreamId stream, PoolId pool) {
  const std::lock_guard lock(mutex_);
  live_.insert(address, allocator_->malloc_at(address, size, stream, pool));
}

bool LockedAllocator::free(Address address) {
  const std::lock_guard lock(mutex_);
  Block* const block = find(address);
  if (block == nullptr) return false;
  allocator_->free(block);
  live_.erase(address);
  return true;
}

bool LockedAllocator::record_stream(Address address, StreamId stream) {
  const std::lock_guard lock(mutex_);
  Block* const block = find(address);
  if (block == nullptr) return false;
  allocator_->record_stream(block, stream);
  return true;
}

std::optional<Bytes> LockedAllocator::block_size(Address address) const {
  const std::lock_guard lock(mutex_);
  const Block* const block = find(address);
  if (block == nullptr) return std::nullopt;
  return block->size;
}

std::optional<Location> LockedAllocator::locate(Address address) const {
  const std::lock_guard lock(mutex_);
  const Block* block = find(address);
  if (block == nullptr) {
    live_.for_each([&](Address begin, const Block* each) {
      if (begin <= address && address - begin < each->size) block = each;
    });
  }
  if (block == nullptr) return std::nullopt;
  return location_of(block);
}

Statistics LockedAllocator::statistics() const {
  const std::lock_guard lock(mutex_);
  return allocator_->statistics();
}

// Throws std::invalid_argument. Only the elastic allocator can pass its memory to other processes,
// and an engine puts no LockedAllocator around it.
ExportedMemory LockedAllocator::export_memory(Address) {
  throw std::invalid_argument("this allocator's memory cannot be exported as file descriptors");
}

}  // namespace plimsoll
