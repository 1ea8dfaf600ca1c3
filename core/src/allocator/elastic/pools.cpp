// The elastic allocator's private pools: those of CUDA graphs, of torch.cuda.MemPool, and regions.

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "plimsoll/allocator/elastic/elastic.h"

namespace plimsoll {

void ElasticAllocator::begin_allocate_to_pool(PoolId pool, Filter filter) {
  const std::lock_guard lock(mutex_);
  know_region(pool);
  if (!private_pools_.is_capturing()) tidy_unused_pools();
  private_pools_.begin_capture(pool, std::move(filter));
  has_captures_.store(true, std::memory_order_release);
}

void ElasticAllocator::end_allocate_to_pool(PoolId pool) {
  const std::lock_guard lock(mutex_);
  private_pools_.end_capture(pool);
  has_captures_.store(private_pools_.is_capturing(), std::memory_order_release);
}

void ElasticAllocator::use_pool(PoolId pool) {
  const std::lock_guard lock(mutex_);
  know_region(pool);
  private_pools_.use(pool);
}

void ElasticAllocator::release_pool(PoolId pool) {
  const std::lock_guard lock(mutex_);
  private_pools_.release(pool);
}

int ElasticAllocator::pool_uses(PoolId pool) const {
  const std::lock_guard lock(mutex_);
  return private_pools_.uses(pool);
}

void ElasticAllocator::set_pool_option(PoolId pool, PoolOption option, bool on) {
  const std::lock_guard lock(mutex_);
  ElasticPool& entry = private_pools_.at(pool);
  entry.set(option, on);
  for_each_arena_of(entry, [&entry](Arena& arena) {
    const Guard guard(arena.lock);
    for (MappedSpace* const space : arena.spaces()) space->set_no_split(entry.no_split);
  });
}

Bytes ElasticAllocator::free_in_private_pools() const {
  Bytes bytes = 0;
  for (const auto& [key, arena] : arena_index_) {
    if (key.first->is_default() || key.first->is_region()) continue;
    const Guard guard(arena->lock);
    for (const MappedSpace* const space : std::as_const(*arena).spaces()) {
      space->free().for_each([&](const Block* block) { bytes += block->size; });
    }
  }
  return bytes;
}

// Programs use one pool after the other, and may never empty the cache. While a graph is captured
// nobody can find out which work is done. So this does before, of pools that nobody holds any more:
// their memory can serve the graph, and the arenas of those that have given all away the next pool.
void ElasticAllocator::tidy_unused_pools() {
  std::vector<ElasticPool*> empty;
  for (auto& [id, pool] : private_pools_) {
    if (pool.uses > 0) continue;
    for_each_arena_of(pool, [this](Arena& arena) {
      mark_idle(arena, false);
      clear_retired(arena);
    });
    if (pool.reserved == 0) empty.push_back(&pool);
  }
  for (ElasticPool* const pool : empty) forget_if_unused(*pool);
}

}  // namespace plimsoll
