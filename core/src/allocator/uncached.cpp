#include "plimsoll/allocator/uncached.h"

#include <stdexcept>

namespace plimsoll {

Block* UncachedAllocator::malloc(Bytes size, StreamId stream) {
  const Bytes rounded = round_up(size, kAlignment);
  Address address = 0;
  const bool over_limit =
      limit_ && static_cast<Bytes>(statistics_.reserved_bytes.all.current) + rounded > *limit_;
  const Status status = over_limit ? Status::out_of_memory : driver_.allocate(rounded, address);
  if (status == Status::out_of_memory) fail(size, rounded, rounded, stream, {}, 0);
  if (status != Status::success) throw DriverError("allocate memory", status, driver_.last_error());

  Pool& pool = rounded <= kMiB ? small_ : large_;
  Block* const block = objects_.make();
  block->address = address;
  block->size = rounded;
  block->requested = size;
  block->stream = stream;
  block->pool = &pool;
  block->allocated = true;
  block->context = block->segment_context = log_.context();
  block->segment_number = ++segments_;
  live_.emplace(address, block);
  ++statistics_.num_device_alloc;
  statistics_.segment.increase(pool.small, 1);
  statistics_.reserved_bytes.increase(pool.small, rounded);
  note(Action::segment_alloc, address, rounded, stream);
  note(Action::alloc, address, size, stream);
  statistics_.allocation.increase(pool.small, 1);
  statistics_.allocated_bytes.increase(pool.small, rounded);
  statistics_.active.increase(pool.small, 1);
  statistics_.active_bytes.increase(pool.small, rounded);
  statistics_.requested_bytes.increase(pool.small, size);
  return block;
}

Block* UncachedAllocator::malloc_at(Address address, Bytes, StreamId, PoolId) {
  throw std::invalid_argument("nothing is cached, so no block is free at " +
                              format_address(address));
}

void UncachedAllocator::free(Block* block) {
  const bool small = block->pool->small;
  if (const Status status = driver_.deallocate(block->address); status != Status::success) {
    throw DriverError("free memory", status, driver_.last_error());
  }
  note(Action::free_requested, block->address, block->requested, block->stream, {}, block->context);
  note(Action::free_completed, block->address, block->requested, block->stream, {}, block->context);
  note(Action::segment_free, block->address, block->size, block->stream, {}, block->context);
  statistics_.allocation.decrease(small, 1);
  statistics_.allocated_bytes.decrease(small, block->size);
  statistics_.active.decrease(small, 1);
  statistics_.active_bytes.decrease(small, block->size);
  statistics_.requested_bytes.decrease(small, block->requested);
  statistics_.segment.decrease(small, 1);
  statistics_.reserved_bytes.decrease(small, block->size);
  ++statistics_.num_device_free;
  live_.erase(block->address);
  block->pool = nullptr;
  objects_.recycle(block);
}

void UncachedAllocator::record_stream(Block*, StreamId) {}

void UncachedAllocator::empty_cache(PoolId) {}

int& UncachedAllocator::uses_of(PoolId pool) {
  const auto entry = pool_uses_.find(pool);
  if (entry == pool_uses_.end()) throw std::invalid_argument("there is no such private pool");
  return entry->second;
}

void UncachedAllocator::begin_allocate_to_pool(PoolId pool, Filter) { use_pool(pool); }

void UncachedAllocator::end_allocate_to_pool(PoolId pool) { (void)uses_of(pool); }

void UncachedAllocator::use_pool(PoolId pool) { ++pool_uses_[pool]; }

void UncachedAllocator::release_pool(PoolId pool) {
  int& uses = uses_of(pool);
  if (uses == 0) throw std::invalid_argument("this private pool was released already");
  --uses;
}

int UncachedAllocator::pool_uses(PoolId pool) const {
  const auto entry = pool_uses_.find(pool);
  return entry == pool_uses_.end() ? 0 : entry->second;
}

void UncachedAllocator::set_pool_option(PoolId pool, PoolOption, bool) { (void)uses_of(pool); }

std::vector<SegmentInfo> UncachedAllocator::segments() const {
  std::vector<SegmentInfo> result;
  for (const auto& [address, block] : live_) {
    SegmentInfo& segment = result.emplace_back();
    segment.address = address;
    segment.total_size = block->size;
    segment.stream = block->stream;
    segment.small = block->pool->small;
    segment.context = block->segment_context;
    segment.number = block->segment_number;
    segment.blocks = {
        {address, block->size, block->requested, BlockState::active_allocated, block->context}};
  }
  return result;
}

void UncachedAllocator::check_invariants() const {
  Bytes bytes = 0;
  Address end = 0;
  for (const auto& [address, block] : live_) {
    if (address < end) throw std::logic_error("broken invariant: blocks do not overlap");
    end = address + block->size;
    bytes += block->size;
  }
  const auto expected = static_cast<std::int64_t>(bytes);
  for (const PoolStat* const stat :
       {&statistics_.reserved_bytes, &statistics_.active_bytes, &statistics_.allocated_bytes}) {
    if (stat->all.current != expected) {
      throw std::logic_error("broken invariant: reserved == active == allocated");
    }
  }
}

}  // namespace plimsoll
