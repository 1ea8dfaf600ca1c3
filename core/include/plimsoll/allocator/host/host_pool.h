// A caching pool of page-locked host memory, the shared memory that programs copy from and to.
//
// Locking memory takes the driver 0.2 ms a MiB and unlocking it waits for the GPU, so what is freed
// is kept. Requests are cut from chunks of whole granules, the smallest hole that fits first, and
// holes that touch are joined: a request of a new size, such as a batch of another length, then
// uses what older ones left, where a list for each power of two would lock as much once more and
// waste up to half of it.
//
// Queued copies may still read a block that was freed. `record` names the streams that use it; it
// is used again when what was queued there before the free is complete. A block that a graph's
// capture was given is used again when the graph is gone: `begin_allocate_to_pool`.
//
// Every function may be called from any thread. The lock is not held while memory is being locked.
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

// What the driver's calls of one kind took.
struct CallTime {
  std::int64_t count = 0;
  std::int64_t total_us = 0;
  std::int64_t max_us = 0;
  std::int64_t min_us = 0;

  void add(std::int64_t time_us);
};

// The counters of torch.cuda.host_memory_stats(), by the names that device memory has for them.
struct HostStatistics {
  Stat active;  // blocks in use, by the program or by work that was queued before they were freed
  Stat active_bytes;
  Stat segment;  // chunks; the driver's calls are what was ever allocated and freed of them
  Stat reserved_bytes;
  CallTime allocate_time;
  CallTime deallocate_time;
};

// The message says that it is shared memory that is spent, and who has it.
class HostOutOfMemory : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class HostPool {
 public:
  // `driver` outlives the pool.
  explicit HostPool(Driver& driver) : driver_(driver) {}
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;
  // Waits for work that uses freed blocks. Blocks that are alive keep their memory.
  ~HostPool();

  // The process's, over the driver of whoever asks first; it is never destroyed.
  [[nodiscard]] static HostPool& of_process(Driver& driver);
  // Null if nobody asked.
  [[nodiscard]] static HostPool* of_process_if_open();

  // At least `size` bytes, aligned to 512, of a pool that was begun, or for everybody. Throws
  // HostOutOfMemory, and DriverError if the driver fails for another reason.
  [[nodiscard]] Address allocate(Bytes size, PoolId pool = {});
  // Both are false, and nothing is done, if the address is of no live block: its first to be freed,
  // any within it to be recorded.
  bool free(Address address);
  bool record(Address address, StreamId stream) { return record(address, stream, driver_); }
  // The stream of another GPU, whose driver outlives the pool as well.
  bool record(Address address, StreamId stream, Driver& driver);

  // Waits for the work that uses freed blocks, and gives the driver the chunks that are free.
  void empty_cache();

  // A graph is captured between begin and end; blocks of the pool stay untouched when they are
  // freed until each begin has had its `release_pool`, and `empty_cache`, a request in need of
  // memory or the next begin has waited for the GPUs that replayed it.
  void begin_allocate_to_pool(PoolId pool);
  void end_allocate_to_pool();
  void release_pool(PoolId pool);

  // The most that may be reserved; nothing means what the driver says can be locked.
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
  struct Freed {  // but in use by queued work
    Address address = 0;
    Block block;  // its uses that could not be recorded yet: their streams are being captured
    std::vector<std::pair<Driver*, Event>> events;
  };
  enum class Effort : std::uint8_t {
    oldest,  // in the order of their frees, up to the first that is in use
    all,
    wait,
  };

  [[nodiscard]] std::optional<Address> take(Bytes size);
  void give(Address address, Bytes size);
  void add_hole(Address address, Bytes size);
  void remove_hole(std::map<Address, Bytes>::iterator hole);
  // Locks a new chunk and takes the block out of it, with `guard` given up meanwhile.
  Status grow(Bytes size, std::optional<Address>& address, std::unique_lock<std::mutex>& guard);
  [[nodiscard]] bool has_room(Bytes size) const;
  void complete_frees(Effort effort);
  [[nodiscard]] static bool is_complete(Freed& freed, bool wait);
  void retire(const Freed& freed);
  void complete_frees_of_graphs();
  void release_chunks();
  [[noreturn]] void fail(Bytes requested, Bytes tried, Status status) const;

  Driver& driver_;
  mutable std::mutex mutex_;  // of all that follows
  std::optional<Bytes> limit_;
  HostStatistics statistics_;
  Bytes growing_ = 0;  // chunks that are being locked
  std::map<Address, Bytes> chunks_;
  std::map<Address, Bytes> holes_;  // never touching within a chunk
  std::set<std::pair<Bytes, Address>> holes_by_size_;
  std::map<Address, Block> blocks_;
  std::list<Freed> freed_;              // oldest first
  std::vector<Freed> freed_by_graphs_;  // of pools that were begun
  std::map<PoolId, int> pool_uses_;
  int captures_ = 0;
};

}  // namespace plimsoll
