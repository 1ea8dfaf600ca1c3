// The counters of torch.cuda.memory_stats(), with its names and meanings.
//
// Invariants: each Stat has peak >= current. Until the first call of `reset_accumulated`, each Stat
// has current == allocated - freed. The current values of a PoolStat fulfil
// all == small_pool + large_pool. active_bytes == allocated_bytes + (bytes of freed blocks that
// another stream may still use).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/base/units.h"

namespace plimsoll {

struct Stat {
  std::int64_t current = 0;
  std::int64_t peak = 0;
  std::int64_t allocated = 0;
  std::int64_t freed = 0;

  void increase(std::uint64_t amount) {
    const auto value = static_cast<std::int64_t>(amount);
    current += value;
    peak = std::max(peak, current);
    allocated += value;
  }
  void decrease(std::uint64_t amount) {
    const auto value = static_cast<std::int64_t>(amount);
    current -= value;
    freed += value;
  }
  void reset_peak() { peak = current; }
  void reset_accumulated() { allocated = freed = 0; }
  bool operator==(const Stat&) const = default;
};

struct PoolStat {
  Stat all;
  Stat small_pool;
  Stat large_pool;

  void increase(bool small, std::uint64_t amount) {
    all.increase(amount);
    (small ? small_pool : large_pool).increase(amount);
  }
  void decrease(bool small, std::uint64_t amount) {
    all.decrease(amount);
    (small ? small_pool : large_pool).decrease(amount);
  }
  bool operator==(const PoolStat&) const = default;
};

struct Statistics {
  PoolStat allocation;  // requests whose blocks the program has not freed
  // Whole driver allocations (cudaMalloc); expandable segments are not counted, as in PyTorch. The
  // elastic allocator makes no such allocations. It counts its handles of physical memory instead.
  PoolStat segment;
  PoolStat active;           // blocks in use, or waiting for another stream
  PoolStat inactive_split;   // free blocks that cannot be returned to the driver
  PoolStat allocated_bytes;  // bytes in live blocks
  PoolStat reserved_bytes;   // bytes taken from the driver
  PoolStat active_bytes;
  PoolStat inactive_split_bytes;
  PoolStat requested_bytes;   // bytes as requested, before rounding
  Stat oversize_allocations;  // requests of max_split_size or more
  Stat oversize_segments;
  std::map<PoolId, PoolStat> reserved_bytes_by_private_pools;
  // plimsoll's own counters. `shared_allocated_bytes` is the part of `allocated_bytes` in shared
  // memory. `shared_reserved_bytes` is the part of `reserved_bytes` in shared memory.
  // `paused_bytes` is the memory that ElasticAllocator::pause took off the card.
  Stat shared_allocated_bytes;
  Stat shared_reserved_bytes;
  Stat paused_bytes;
  std::int64_t num_spills = 0;  // requests that got shared memory because dedicated memory was full
  std::int64_t num_alloc_retries = 0;
  std::int64_t num_ooms = 0;
  std::int64_t num_sync_all_streams = 0;
  std::int64_t num_device_alloc = 0;
  std::int64_t num_device_free = 0;
  std::int64_t num_oom_rejections = 0;
  std::int64_t max_split_size = -1;  // -1: no limit

  void reset_peak();
  void reset_accumulated();
  bool operator==(const Statistics&) const = default;

  // Returns the counters by flat names such as "allocated_bytes.all.peak", as
  // torch.cuda.memory_stats() does. `with_oom_rejections` adds num_oom_rejections, which PyTorch
  // has from 2.12 on. `with_tiers` adds plimsoll's own counters: shared_*, paused_* and num_spills.
  [[nodiscard]] std::vector<std::pair<std::string, std::int64_t>> flatten(
      bool with_oom_rejections, bool with_tiers = false) const;
};

}  // namespace plimsoll
