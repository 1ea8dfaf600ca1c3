// The contract of an allocator on one device, whatever its policy.
//
// Blocks that are alive never overlap. A block belongs to the stream it was asked for on: after
// `free` it may serve that stream at once, and any other only when the work queued on it before
// `free`, on every stream that `record_stream` named, is complete. A request that fails throws
// OutOfMemory and leaves the allocator as it was, but for cached memory returned to the driver,
// counters and history. An allocator is not thread-safe; its owner serializes calls.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "plimsoll/allocator/block.h"
#include "plimsoll/allocator/event_log.h"
#include "plimsoll/driver/driver.h"
#include "plimsoll/events/segment.h"
#include "plimsoll/events/statistics.h"
#include "plimsoll/torch_versions.h"

namespace plimsoll {

struct SharedMemoryReport {
  Bytes reserved = 0;
  Bytes allowed = 0;  // by the limit and the host
  Bytes free = 0;     // of that
};

// What was asked, what was free and who holds the rest, at the moment a request failed.
struct OutOfMemoryReport {
  int device = 0;
  Bytes requested = 0;  // as the program asked
  Bytes tried = 0;      // what the driver was asked for, or would have been
  Bytes device_total = 0;
  Bytes device_free = 0;
  Bytes used_by_others = 0;    // by other processes
  std::optional<Bytes> limit;  // the most this process may reserve
  Bytes allocated = 0;
  Bytes reserved = 0;
  Bytes free_in_private_pools = 0;
  std::optional<SharedMemoryReport> shared = {};  // if the request might have been served there
  std::string advice = {};                        // what might help, after the figures
  // PyTorch did not ask the driver, because throw_on_cudamalloc_oom forbids to give memory back.
  bool is_rejected = false;
};

// Returns the page that PyTorch's messages name.
[[nodiscard]] std::string documentation(TorchVersion version);
// Returns PyTorch's usual advice in a version's words.
[[nodiscard]] std::string usual_advice(TorchVersion version);

class OutOfMemory : public std::runtime_error {
 public:
  explicit OutOfMemory(const OutOfMemoryReport& report);
  OutOfMemory(const OutOfMemoryReport& report, const std::string& text);
  [[nodiscard]] const OutOfMemoryReport& report() const { return report_; }

 private:
  OutOfMemoryReport report_;
};

// A driver call that may not fail did: the message names the call, and says why in the driver's
// words (`Driver::last_error`), or by its status if it has none.
class DriverError : public std::runtime_error {
 public:
  DriverError(const char* call, Status status, const std::string& reason = {});
};

// No live block begins at the address.
class UnknownAddress : public std::invalid_argument {
 public:
  explicit UnknownAddress(Address address);
};

// What a private pool does otherwise than pools do; each is off at first.
enum class PoolOption {
  use_on_oom,  // requests outside the pool may take its free blocks when the driver refuses
  no_split,    // its blocks are never split; it cannot be switched off
};

class Allocator {
 public:
  explicit Allocator(Driver& driver, int device = 0)
      : driver_(driver), device_(device), log_(driver) {}
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;
  virtual ~Allocator() = default;

  // `size` > 0 bytes for work on `stream`. Throws OutOfMemory.
  virtual Block* malloc(Bytes size, StreamId stream) = 0;
  // A block of exactly these bytes, cut out of one free block of that pool and stream. Throws
  // std::invalid_argument if there is no such free block.
  virtual Block* malloc_at(Address address, Bytes size, StreamId stream, PoolId pool) = 0;
  virtual void free(Block* block) = 0;
  // The block is used on `stream` as well, from now until it is freed.
  virtual void record_stream(Block* block, StreamId stream) = 0;
  // Waits for pending frees and returns to the driver what is free of one pool; {0, 0} stands for
  // the default pool and all released pools.
  virtual void empty_cache(PoolId pool = {}) = 0;

  // Completes the frees whose waiting is over; `malloc` does so by itself.
  virtual void poll() = 0;

  // Which requests go to a private pool; all, if it is empty.
  using Filter = std::function<bool(StreamId)>;
  [[nodiscard]] static Filter only_on(std::optional<StreamId> stream) {
    if (!stream) return {};
    return [only = *stream](StreamId asked) { return asked == only; };
  }
  // Requests that pass the filter go to a private pool between begin and end. No event is queried
  // meanwhile, unless the allocator tells the captures of graphs from other uses. The pool is
  // created when it is new; each begin counts one use, which `release_pool` takes back; at 0 the
  // pool may be emptied.
  virtual void begin_allocate_to_pool(PoolId pool, Filter filter) = 0;
  virtual void end_allocate_to_pool(PoolId pool) = 0;
  // Around the capture of a graph, besides the pool that it begins; captures may overlap.
  virtual void begin_graph_capture() {}
  virtual void end_graph_capture() {}
  // One more use of the pool, which is created when it is new.
  virtual void use_pool(PoolId pool) = 0;
  virtual void release_pool(PoolId pool) = 0;
  // 0 as well if there is no such pool.
  [[nodiscard]] virtual int pool_uses(PoolId pool) const = 0;
  // Throws std::invalid_argument if there is no such pool, or no_split is to be switched off.
  virtual void set_pool_option(PoolId pool, PoolOption option, bool on) = 0;

  // The most that may be reserved; nothing means no limit but the device.
  virtual void set_limit(std::optional<Bytes> limit) { limit_ = limit; }
  [[nodiscard]] virtual std::optional<Bytes> limit() const { return limit_; }

  // The largest free block of the default pool, on any stream.
  [[nodiscard]] virtual Bytes largest_free_block() const = 0;
  [[nodiscard]] virtual std::vector<SegmentInfo> segments() const = 0;
  // Throws std::logic_error that names the first invariant that does not hold. O(blocks).
  virtual void check_invariants() const = 0;

  [[nodiscard]] const Statistics& statistics() const {
    refresh_statistics();
    return statistics_;
  }
  virtual void reset_peak_statistics() { statistics_.reset_peak(); }
  virtual void reset_accumulated_statistics() { statistics_.reset_accumulated(); }

  [[nodiscard]] History& history() { return log_.history(); }
  [[nodiscard]] const History& history() const { return log_.history(); }
  // Tells `observer`, or nobody if it is null, of all events from now on. It outlives the
  // allocator, which it must not call.
  void set_observer(Observer* observer) { log_.set_observer(observer); }
  // The caller's number for the call stack of what follows; stored with blocks and events.
  void set_context(std::uint32_t context) { log_.set_context(context); }
  // Notes in the history that the program took a snapshot.
  void note_snapshot();

  [[nodiscard]] Driver& driver() const { return driver_; }
  [[nodiscard]] int device() const { return device_; }

 protected:
  // Brings `statistics_` up to date, where counters are kept elsewhere.
  virtual void refresh_statistics() const {}
  // Returns what might help where requests for `tried` bytes fail, with a space before it.
  [[nodiscard]] virtual std::string advice_against_failure(Bytes) const { return usual_advice({}); }
  void note(Action action, Address address, Bytes size, StreamId stream, PoolId pool = {},
            std::uint32_t context = 0, Bytes shared = 0) {
    log_.note(action, address, size, stream, pool, context, shared);
  }
  [[nodiscard]] OutOfMemoryReport report_failure(
      Bytes requested, Bytes tried, Bytes free_in_private_pools,
      const std::optional<SharedMemoryReport>& shared = {}) const;
  [[noreturn]] void fail(Bytes requested, Bytes rounded, Bytes tried, StreamId stream, PoolId pool,
                         Bytes free_in_private_pools,
                         const std::optional<SharedMemoryReport>& shared = {});

  Driver& driver_;
  int device_;
  std::optional<Bytes> limit_;
  mutable Statistics statistics_;
  EventLog log_;
};

}  // namespace plimsoll
