// All pools of the allocator. Finds the pool that serves a request.
#pragma once

#include <vector>

#include "plimsoll/allocator/config.h"
#include "plimsoll/allocator/native/pool_order.h"
#include "plimsoll/allocator/pool.h"
#include "plimsoll/allocator/private_pools.h"

namespace plimsoll {

struct NativePools {
  explicit NativePools(TorchVersion version) : privates(version) {}

  Pool small{true};
  Pool large{false};
  PrivatePools<PrivatePool> privates;
  PoolOrder released;   // pools with 0 uses
  PoolOrder emergency;  // pools marked use_on_oom

  // Returns the pool that serves a request whose rounded size is `size`.
  [[nodiscard]] Pool& serving(Bytes size, StreamId stream) {
    const bool is_small = size <= AllocatorConfig::kSmallRequest;
    return pool_of(privates.pool_for(stream), is_small);
  }
  // Returns a pool. Throws std::invalid_argument if there is no such private pool.
  [[nodiscard]] Pool& at(PoolId id, bool is_small) {
    return pool_of(id.is_default() ? nullptr : &privates.at(id), is_small);
  }

  // Returns the private pools with 0 uses, in the order in which they are emptied.
  [[nodiscard]] std::vector<PoolId> unheld() const {
    std::vector<PoolId> ids = released.ids();
    for (const auto& [id, pool] : privates) {
      if (pool.uses == 0 && !released.contains(id)) ids.push_back(id);
    }
    return ids;
  }
  void forget(PoolId id) {
    privates.forget(id);
    released.erase(id);
    emergency.erase(id);
  }

  [[nodiscard]] Bytes free_in_privates() const {
    Bytes bytes = 0;
    for (const auto& [id, pool] : privates) {
      bytes += pool.small.free_bytes() + pool.large.free_bytes();
    }
    return bytes;
  }

 private:
  [[nodiscard]] Pool& pool_of(PrivatePool* owner, bool is_small) {
    if (owner == nullptr) return is_small ? small : large;
    return is_small ? owner->small : owner->large;
  }
};

}  // namespace plimsoll
