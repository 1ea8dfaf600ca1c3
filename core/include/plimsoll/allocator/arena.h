// The memory of one stream in one pool, with a lock of its own.
//
// Small requests and large ones lie in separate spaces, so that a small block never pins a large
// piece; free pieces go from one to the other without waiting, for both serve the same stream.
// Everything here is guarded by `lock`, but for what says otherwise.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "plimsoll/allocator/address_map.h"
#include "plimsoll/allocator/mapped_space.h"
#include "plimsoll/allocator/private_pools.h"
#include "plimsoll/lock.h"
#include "plimsoll/trace/shared_statistics.h"

namespace plimsoll {

struct ElasticPool;

struct alignas(64) Arena {
  Arena(StreamId of, ElasticPool& in, SharedStatistics::Shard& counts)
      : stream(of), pool(&in), shard(counts) {}

  Lock lock;
  StreamId stream;    // constant while the arena has any memory
  ElasticPool* pool;  // likewise
  SharedStatistics::Shard& shard;
  MappedSpace small{*this, true};
  MappedSpace large{*this, false};
  AddressMap<Block*> live;
  Bytes reserved = 0;  // of the driver's memory

  // Each free gets the next age. What was freed at `idle_age` or before, the stream no longer uses:
  // its memory may go to other streams.
  std::uint64_t age = 0;
  std::uint64_t idle_age = 0;
  struct Marker {  // in the stream's work, after all uses of what was freed at `age` or before
    Event event = 0;
    std::uint64_t age = 0;
  };
  std::optional<Marker> marker;

  [[nodiscard]] MappedSpace& space_for(bool is_small) { return is_small ? small : large; }
};

// The default pool, a CUDA graph's or a torch.cuda.MemPool's.
struct ElasticPool : PoolBase {
  using PoolBase::PoolBase;

  [[nodiscard]] bool is_default() const { return id.is_default(); }
  // A graph remembers addresses, so memory never leaves a pool that somebody holds.
  [[nodiscard]] bool may_give() const { return is_default() || uses == 0; }
};

}  // namespace plimsoll
