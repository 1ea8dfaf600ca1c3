#include "plimsoll/allocator/native/books.h"

namespace plimsoll {

void Books::take_segment(const Block* segment) {
  const Pool& pool = *segment->pool;
  statistics_.segment.increase(pool.small, 1);
  add_reserved(pool, segment->size);
  if (is_oversize(segment)) statistics_.oversize_segments.increase(1);
  ++statistics_.num_device_alloc;
  log_.note(Action::segment_alloc, segment->address, segment->size, segment->stream, pool.id());
}

void Books::release_segment(const Block* segment) {
  const Pool& pool = *segment->pool;
  ++statistics_.num_device_free;
  log_.note(Action::segment_free, segment->address, segment->size, segment->stream, pool.id(),
            segment->segment_context);
  statistics_.segment.decrease(pool.small, 1);
  remove_reserved(pool, segment->size);
  if (is_oversize(segment)) statistics_.oversize_segments.decrease(1);
}

void Books::map(const Block* block, Address address, Bytes size) {
  add_reserved(*block->pool, size);
  ++statistics_.num_device_alloc;
  log_.note(Action::segment_map, address, size, block->stream, block->pool->id());
}

void Books::unmap(const Block* block, Address address, Bytes size) {
  remove_reserved(*block->pool, size);
  ++statistics_.num_device_free;
  log_.note(Action::segment_unmap, address, size, block->stream, block->pool->id(),
            block->segment_context);
}

void Books::add_reserved(const Pool& pool, Bytes size) {
  reserved_ += size;
  statistics_.reserved_bytes.increase(pool.small, size);
  if (pool.owner == nullptr) return;
  pool.owner->reserved += size;
  if (version_.counts_private_pools()) {
    statistics_.reserved_bytes_by_private_pools[pool.owner->id].increase(pool.small, size);
  }
}

void Books::remove_reserved(const Pool& pool, Bytes size) {
  reserved_ -= size;
  statistics_.reserved_bytes.decrease(pool.small, size);
  if (pool.owner == nullptr) return;
  pool.owner->reserved -= size;
  if (version_.counts_private_pools()) {
    statistics_.reserved_bytes_by_private_pools[pool.owner->id].decrease(pool.small, size);
  }
}

}  // namespace plimsoll
