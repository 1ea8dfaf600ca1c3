#include "plimsoll/allocator/live_allocator.h"

#include <utility>

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

Address LockedAllocator::allocate(Bytes size, StreamId stream) {
  const std::lock_guard lock(mutex_);
  return by_address_.malloc(size, stream);
}

void LockedAllocator::allocate_at(Address address, Bytes size, StreamId stream, PoolId pool) {
  const std::lock_guard lock(mutex_);
  by_address_.malloc_at(address, size, stream, pool);
}

bool LockedAllocator::free(Address address) {
  const std::lock_guard lock(mutex_);
  return by_address_.try_free(address);
}

bool LockedAllocator::record_stream(Address address, StreamId stream) {
  const std::lock_guard lock(mutex_);
  Block* const block = by_address_.find(address);
  if (block == nullptr) return false;
  allocator_->record_stream(block, stream);
  return true;
}

std::optional<Location> LockedAllocator::locate(Address address) const {
  const std::lock_guard lock(mutex_);
  const Block* const block = by_address_.around(address);
  if (block == nullptr) return std::nullopt;
  return location_of(block);
}

void LockedAllocator::empty_cache(PoolId pool) {
  const std::lock_guard lock(mutex_);
  allocator_->empty_cache(pool);
}

void LockedAllocator::begin_allocate_to_pool(PoolId pool, Allocator::Filter filter) {
  const std::lock_guard lock(mutex_);
  allocator_->begin_allocate_to_pool(pool, std::move(filter));
}

void LockedAllocator::end_allocate_to_pool(PoolId pool) {
  const std::lock_guard lock(mutex_);
  allocator_->end_allocate_to_pool(pool);
}

void LockedAllocator::begin_graph_capture() {
  const std::lock_guard lock(mutex_);
  allocator_->begin_graph_capture();
}

void LockedAllocator::end_graph_capture() {
  const std::lock_guard lock(mutex_);
  allocator_->end_graph_capture();
}

void LockedAllocator::use_pool(PoolId pool) {
  const std::lock_guard lock(mutex_);
  allocator_->use_pool(pool);
}

void LockedAllocator::release_pool(PoolId pool) {
  const std::lock_guard lock(mutex_);
  allocator_->release_pool(pool);
}

int LockedAllocator::pool_uses(PoolId pool) const {
  const std::lock_guard lock(mutex_);
  return allocator_->pool_uses(pool);
}

void LockedAllocator::set_pool_option(PoolId pool, PoolOption option, bool on) {
  const std::lock_guard lock(mutex_);
  allocator_->set_pool_option(pool, option, on);
}

void LockedAllocator::set_limit(std::optional<Bytes> limit) {
  const std::lock_guard lock(mutex_);
  allocator_->set_limit(limit);
}

std::optional<Bytes> LockedAllocator::limit() const {
  const std::lock_guard lock(mutex_);
  return allocator_->limit();
}

Bytes LockedAllocator::largest_free_block() const {
  const std::lock_guard lock(mutex_);
  return allocator_->largest_free_block();
}

Statistics LockedAllocator::statistics() const {
  const std::lock_guard lock(mutex_);
  return allocator_->statistics();
}

void LockedAllocator::reset_peak_statistics() {
  const std::lock_guard lock(mutex_);
  allocator_->reset_peak_statistics();
}

void LockedAllocator::reset_accumulated_statistics() {
  const std::lock_guard lock(mutex_);
  allocator_->reset_accumulated_statistics();
}

std::vector<SegmentInfo> LockedAllocator::segments() const {
  const std::lock_guard lock(mutex_);
  return allocator_->segments();
}

void LockedAllocator::set_observer(Observer* observer) { allocator_->set_observer(observer); }

// What these allocators map has no name of its own outside the process.
ExportedMemory LockedAllocator::export_memory(Address) {
  throw std::invalid_argument("this allocator's memory cannot be exported as file descriptors");
}

}  // namespace plimsoll
