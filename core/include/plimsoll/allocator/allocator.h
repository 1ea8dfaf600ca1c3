// The contract that every allocator on one device fulfils, whatever its policy.
//
// Live blocks never overlap. A block belongs to the stream that requested it. After `free`, nothing
// reuses the block until the work queued before `free` is complete on every stream that
// `record_stream` named. Before another stream reuses the block's memory, the work of the block's
// own stream must be complete, too. The own stream need not wait for its own work, because a stream
// runs its work in order. A failed request throws OutOfMemory.
// It changes the counters and the history, and may return cached memory to the driver, but has no
// other effect. An allocator is not thread-safe. Its owner serializes calls.
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
  Bytes allowed = 0;  // the limit on shared memory, or the driver's total if that is less
  Bytes free = 0;     // the unused part of `allowed`
};

// The state at the moment when a request failed: the request, the free memory, and how the rest of
// the memory is used.
struct OutOfMemoryReport {
  int device = 0;
  Bytes requested = 0;  // the size that the program asked for
  Bytes tried = 0;      // bytes that were, or would have been, requested from the driver
  Bytes device_total = 0;
  Bytes device_free = 0;
  Bytes used_by_others = 0;    // memory that other processes use
  std::optional<Bytes> limit;  // the most this process may reserve
  Bytes allocated = 0;
  Bytes reserved = 0;
  Bytes free_in_private_pools = 0;
  std::optional<SharedMemoryReport> shared = {};  // unset if the request may not use shared memory
  std::string advice = {};                        // printed after the figures
  // True if the allocator rejected the request without asking the driver, because of the setting
  // throw_on_cudamalloc_oom. Without the setting, the allocator returns cached memory to the driver
  // and tries again.
  bool is_rejected = false;
};

// Returns the sentence of PyTorch's out-of-memory messages that links to the documentation.
[[nodiscard]] std::string documentation(TorchVersion version);
// Returns PyTorch's usual advice after a failed request (to try expandable segments), in the words
// of that version of PyTorch.
[[nodiscard]] std::string usual_advice(TorchVersion version);

class OutOfMemory : public std::runtime_error {
 public:
  explicit OutOfMemory(const OutOfMemoryReport& report);
  OutOfMemory(const OutOfMemoryReport& report, const std::string& text);
  [[nodiscard]] const OutOfMemoryReport& report() const { return report_; }

 private:
  OutOfMemoryReport report_;
};

// Thrown when a driver call fails and the allocator has no way around it. The message names the
// call and gives the driver's reason (`Driver::last_error`), or the status if the driver gave none.
class DriverError : public std::runtime_error {
 public:
  DriverError(const char* call, Status status, const std::string& reason = {});
};

// Thrown when the program passes an address at which no live block begins.
class UnknownAddress : public std::invalid_argument {
 public:
  explicit UnknownAddress(Address address);
};

// Options of a private pool. Every option is off at first.
enum class PoolOption {
  // If the driver refuses memory to a request outside the pool, the request may take a free block
  // of the pool.
  use_on_oom,
  no_split,  // never splits the pool's blocks; cannot be switched off
};

class Allocator {
 public:
  explicit Allocator(Driver& driver, int device = 0)
      : driver_(driver), device_(device), log_(driver) {}
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;
  virtual ~Allocator() = default;

  // Returns a block of `size` > 0 bytes for work on `stream`. Throws OutOfMemory.
  virtual Block* malloc(Bytes size, StreamId stream) = 0;
  // Returns a block at exactly this address and size, cut out of one free block of that pool and
  // stream. Throws std::invalid_argument if there is no such free block.
  virtual Block* malloc_at(Address address, Bytes size, StreamId stream, PoolId pool) = 0;
  virtual void free(Block* block) = 0;
  // Notes that work on `stream` also uses the block, from now until the block is freed.
  virtual void record_stream(Block* block, StreamId stream) = 0;
  // Waits for pending frees and returns the pool's free memory to the driver. The id {0, 0} means
  // the default pool and all released pools.
  virtual void empty_cache(PoolId pool = {}) = 0;

  // Completes the frees that waited for work on other streams, if that work is done. `malloc` calls
  // this function itself.
  virtual void poll() = 0;

  // Returns true for the streams whose requests go to a private pool. An empty filter selects all
  // streams.
  using Filter = std::function<bool(StreamId)>;
  [[nodiscard]] static Filter only_on(std::optional<StreamId> stream) {
    if (!stream) return {};
    return [only = *stream](StreamId asked) { return asked == only; };
  }
  // Between `begin` and `end`, requests that pass the filter are served from the private pool.
  // `begin` creates the pool if it is new and counts one use. `release_pool` subtracts one use. A
  // pool with 0 uses may be emptied. Between `begin` and `end` a graph capture may be running, and
  // a query of an event would break the capture. So an allocator queries events in that time only
  // if it can tell that no capture is running.
  virtual void begin_allocate_to_pool(PoolId pool, Filter filter) = 0;
  virtual void end_allocate_to_pool(PoolId pool) = 0;
  // Called at the beginning and the end of a graph's capture, in addition to
  // `begin_allocate_to_pool` and `end_allocate_to_pool`. Captures may overlap.
  virtual void begin_graph_capture() {}
  virtual void end_graph_capture() {}
  // Counts one more use of the pool, and creates it if it is new.
  virtual void use_pool(PoolId pool) = 0;
  virtual void release_pool(PoolId pool) = 0;
  // Returns the pool's number of uses; 0 if there is no such pool.
  [[nodiscard]] virtual int pool_uses(PoolId pool) const = 0;
  // Switches an option of the pool. Throws std::invalid_argument if there is no such pool, or if
  // no_split would be switched off.
  virtual void set_pool_option(PoolId pool, PoolOption option, bool on) = 0;

  // Sets the most bytes that may be reserved. Without a value, the device's memory is the only
  // limit.
  virtual void set_limit(std::optional<Bytes> limit) { limit_ = limit; }
  [[nodiscard]] virtual std::optional<Bytes> limit() const { return limit_; }

  // Returns the size of the largest free block of the default pool, on any stream.
  [[nodiscard]] virtual Bytes largest_free_block() const = 0;
  [[nodiscard]] virtual std::vector<SegmentInfo> segments() const = 0;
  // Throws std::logic_error if an invariant is violated. The message names the invariant. Takes
  // O(blocks) time.
  virtual void check_invariants() const = 0;

  [[nodiscard]] const Statistics& statistics() const {
    refresh_statistics();
    return statistics_;
  }
  virtual void reset_peak_statistics() { statistics_.reset_peak(); }
  virtual void reset_accumulated_statistics() { statistics_.reset_accumulated(); }

  [[nodiscard]] History& history() { return log_.history(); }
  [[nodiscard]] const History& history() const { return log_.history(); }
  // Sends all events to `observer` from now on, or to no observer if it is null. The observer must
  // outlive the allocator, and must not call the allocator.
  void set_observer(Observer* observer) { log_.set_observer(observer); }
  // Sets the number that the caller has given to the current call stack. Each block that is
  // allocated and each event that happens from now on stores this number.
  void set_context(std::uint32_t context) { log_.set_context(context); }
  // Notes in the history that the program took a snapshot.
  void note_snapshot();

  [[nodiscard]] Driver& driver() const { return driver_; }
  [[nodiscard]] int device() const { return device_; }

 protected:
  // Updates `statistics_`. An allocator that keeps its counters elsewhere overrides this function.
  virtual void refresh_statistics() const {}
  // Returns advice for the out-of-memory message, with a leading space. The argument is
  // `OutOfMemoryReport::tried`.
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
