// The private pools of a replayed program. Chooses the pool of each request, and releases a pool
// when the recording shows that the program has released it. An allocator keeps a pool until each
// `begin_allocate_to_pool` is matched by a `release_pool`. Therefore, this class counts how often
// it has called `begin_allocate_to_pool` for each pool.
#pragma once

#include <map>

#include "plimsoll/allocator/allocator.h"

namespace plimsoll {

class RecordedPools {
 public:
  // `tells_captures` says whether the allocator distinguishes graph captures from other uses of a
  // pool.
  RecordedPools(Allocator& allocator, bool tells_captures)
      : allocator_(allocator), tells_captures_(tells_captures) {}

  // Adds a pool that exists when the recording begins.
  void add(PoolId pool) { uses_.emplace(pool, 1); }

  // Sends requests to this pool from now on; {0, 0} is the default pool.
  void use(PoolId pool) {
    if (pool == current_) return;
    if (!current_.is_default()) allocator_.end_allocate_to_pool(current_);
    if (is_of_graph(current_)) allocator_.end_graph_capture();
    current_ = pool;
    if (pool.is_default()) return;
    allocator_.begin_allocate_to_pool(pool, {});
    if (is_of_graph(pool)) allocator_.begin_graph_capture();
    ++uses_[pool];
  }

  // Notes that memory of the pool went back to the driver. While graphs or MemPools hold a pool,
  // PyTorch releases memory of the pool only before a request to the same pool. So if requests now
  // go to another pool, no graph or MemPool holds this pool any more, and the pool is released.
  void note_emptied(PoolId pool) {
    if (pool == current_) return;
    const auto uses = uses_.find(pool);
    if (uses == uses_.end()) return;
    for (int& left = uses->second; left > 0; --left) allocator_.release_pool(pool);
  }

  // Returns whether the allocator treats requests to this pool as part of a capture.
  [[nodiscard]] bool is_capturing(PoolId pool) const {
    return !pool.is_default() && (!tells_captures_ || is_of_graph(pool));
  }

 private:
  // Returns whether a graph made the pool. Pools from torch.cuda.MemPool and graph_pool_handle()
  // have 0 as `first`. A recording does not show which of the two made a pool, so this class treats
  // each such pool as a MemPool's, even if a graph uses the pool.
  [[nodiscard]] static bool is_of_graph(PoolId pool) { return pool.first != 0; }

  Allocator& allocator_;
  bool tells_captures_;
  PoolId current_;
  std::map<PoolId, int> uses_;
};

}  // namespace plimsoll
