// An allocator without a cache. It calls the driver for each request and each free, as PyTorch does
// with PYTORCH_NO_CUDA_MEMORY_CACHING=1. A comparison with it shows what caching saves.
//
// Each block is a segment. Freeing waits for the device, so no free is ever pending. Private pools
// only count their uses: they keep no memory.
#pragma once

#include <map>

#include "plimsoll/allocator/allocator.h"
#include "plimsoll/allocator/pool.h"
#include "plimsoll/base/object_pool.h"

namespace plimsoll {

class UncachedAllocator final : public Allocator {
 public:
  using Allocator::Allocator;

  Block* malloc(Bytes size, StreamId stream) override;
  Block* malloc_at(Address address, Bytes size, StreamId stream, PoolId pool) override;
  void free(Block* block) override;
  void record_stream(Block* block, StreamId stream) override;
  void empty_cache(PoolId pool = {}) override;
  void poll() override {}
  void begin_allocate_to_pool(PoolId pool, Filter filter) override;
  void end_allocate_to_pool(PoolId pool) override;
  void use_pool(PoolId pool) override;
  void release_pool(PoolId pool) override;
  [[nodiscard]] int pool_uses(PoolId pool) const override;
  void set_pool_option(PoolId pool, PoolOption option, bool on) override;
  [[nodiscard]] Bytes largest_free_block() const override { return 0; }
  [[nodiscard]] std::vector<SegmentInfo> segments() const override;
  void check_invariants() const override;

 private:
  static constexpr Bytes kAlignment = 512;

  [[nodiscard]] int& uses_of(PoolId pool);

  ObjectPool<Block> objects_;
  Pool small_{true};
  Pool large_{false};
  std::map<Address, Block*> live_;
  std::uint32_t segments_ = 0;  // the last `Block::segment_number` that was given
  std::map<PoolId, int> pool_uses_;
};

}  // namespace plimsoll
