// A caching pool of page-locked host memory, which programs copy from and to.
//
// Locking memory takes the driver 0.2 ms a MiB, and unlocking it waits for the GPU, so the pool
// keeps freed memory. It takes chunks of whole granules from the driver, and cuts blocks from them.
// A request gets the smallest hole that is large enough. Adjacent holes are joined. So a request of
// a new size, such as a batch of another length, uses holes that older requests left. A pool with a
// free list for each power of two would lock new memory for that request, and would waste up to
// half of each block.
//
// Queued copies may still read a block that was freed. `record` names the streams that use a block.
// The pool reuses a freed block once these streams are done with all work that they had queued by
// the time of the free. A block that was allocated during a graph's capture is reused once the
// graph is gone: see `begin_allocate_to_pool`.
//
// Every function may be called from any thread. The mutex is not held while the driver locks
// memory.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "plimsoll/allocator/block.h"
#include "plimsoll/driver/driver.h"
#include "plimsoll/events/statistics.h"

namespace plimsoll {

// The number of driver calls of one kind and the time they took.
struct CallTime {
  std::int64_t count = 0;
  std::int64_t total_us = 0;
  std::int64_t max_us = 0;
  std::int64_t min_us = 0;

  void add(std::int64_t time_us);
};

// The counters of torch.cuda.host_memory_stats(), named like the matching counters of device
// memory.
struct HostStatistics {
  Stat active;  // blocks in use by the program or by work that was queued before their free
  Stat active_bytes;
  // Chunks. `allocated` counts the driver calls that locked a chunk, and `freed` the calls that
  // unlocked a chunk.
  Stat segment;
  Stat reserved_bytes;
  CallTime allocate_time;
  CallTime deallocate_time;
};

// Thrown when the driver, the machine or the pool's limit allows no more page-locked host memory.
// The message says how much of it this process has, and how much can still be locked.
class HostOutOfMemory : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class HostPool {
 public:
  // Takes a `driver` that outlives the pool.
  explicit HostPool(Driver& driver) : driver_(driver) {}
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;
  // Waits for work that uses freed blocks. Live blocks keep their memory.
  ~HostPool();

  // Returns the process's pool, which is never destroyed. It calls the driver of the first caller.
  [[nodiscard]] static HostPool& of_process(Driver& driver);
  // Returns the process's pool; null if no caller has opened it.
  [[nodiscard]] static HostPool* of_process_if_open();

  // Returns a block of at least `size` bytes, aligned to 512. `pool` is one for which
  // `begin_allocate_to_pool` was called, or the default pool. Throws HostOutOfMemory, and
  // DriverError if the driver fails for another reason.
  [[nodiscard]] Address allocate(Bytes size, PoolId pool = {});
  // Return false, and do nothing, if the address belongs to no live block. `free` needs the block's
  // first address; `record` takes any address in the block.
  bool free(Address address);
  bool record(Address address, StreamId stream) { return record(address, stream, driver_); }
  // Does what `record` does above, for a stream of another GPU. That GPU's `driver` outlives the
  // pool, too.
  bool record(Address address, StreamId stream, Driver& driver);

  // Waits for the work that uses freed blocks, and returns free chunks to the driver.
  void empty_cache();

  // Between `begin` and `end`, a graph is being captured that uses blocks of this pool. Each
  // `begin` adds one use of the pool, and each `release_pool` subtracts one. Freed blocks of the
  // pool are reused only when the pool has no uses left and the GPUs that replayed the graph have
  // finished. Three calls wait for those GPUs: `empty_cache`, the next `begin`, and an `allocate`
  // for which neither the pool nor the driver has memory.
  void begin_allocate_to_pool(PoolId pool);
  void end_allocate_to_pool();
  void release_pool(PoolId pool);

  // Sets the most bytes that may be reserved. Without a value, the limit is the memory that the
  // driver can lock.
  void set_limit(std::optional<Bytes> limit);
  [[nodiscard]] std::optional<Bytes> limit() const;

  [[nodiscard]] HostStatistics statistics() const;
  void reset_peak_statistics();
  void reset_accumulated_statistics();

 private:
  struct Use {
    Driver* driver = nullptr;
    StreamId stream = 0;
    friend bool operator==(const Use&, const Use&) = default;
  };
  struct Block {
    Bytes size = 0;
    PoolId pool;
    std::vector<Use> uses;
  };
  struct Freed {  // a freed block that queued work still uses
    Address address = 0;
    // The block's `uses` are the streams on which no event could be recorded yet, because these
    // streams are being captured.
    Block block;
    std::vector<std::pair<Driver*, Event>> events;
  };
  enum class Effort : std::uint8_t {
    oldest,  // completes the frees from the oldest on, and stops at the first that has to wait
    all,     // completes every free that does not have to wait for queued work
    wait,    // waits for the queued work, then does what `all` does
  };

  [[nodiscard]] std::optional<Address> take(Bytes size);
  void give(Address address, Bytes size);
  void add_hole(Address address, Bytes size);
  void remove_hole(std::map<Address, Bytes>::iterator hole);
  // Allocates a new page-locked chunk and takes the block from it. `guard` is unlocked during the
  // driver's call.
  Status grow(Bytes size, std::optional<Address>& address, std::unique_lock<std::mutex>& guard);
  [[nodiscard]] bool has_room(Bytes size) const;
  void complete_frees(Effort effort);
  [[nodiscard]] static bool is_complete(Freed& freed, bool wait);
  void retire(const Freed& freed);
  void complete_frees_of_graphs();
  void release_chunks();
  [[noreturn]] void fail(Bytes requested, Bytes tried, Status status) const;

  Driver& driver_;
  mutable std::mutex mutex_;  // protects all members below
  std::optional<Bytes> limit_;
  HostStatistics statistics_;
  Bytes growing_ = 0;  // bytes of chunks that are being locked
  std::map<Address, Bytes> chunks_;
  std::map<Address, Bytes> holes_;  // adjacent holes of a chunk are joined
  std::set<std::pair<Bytes, Address>> holes_by_size_;
  std::map<Address, Block> blocks_;
  std::list<Freed> freed_;              // oldest first
  std::vector<Freed> freed_by_graphs_;  // freed blocks of all pools but the default one
  std::map<PoolId, int> pool_uses_;
  int captures_ = 0;
};

}  // namespace plimsoll
