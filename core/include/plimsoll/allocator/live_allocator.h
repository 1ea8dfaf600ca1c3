// An allocator as a running program uses it: by address, from any thread.
//
// The contract is Allocator's. What tells the two apart is who knows the blocks and who takes the
// locks: here the allocator does both. Every function may be called by several threads at a time;
// those that may fail throw what Allocator's do, and have then changed nothing.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <vector>

#include "plimsoll/allocator/allocator.h"
#include "plimsoll/allocator/by_address.h"
#include "plimsoll/allocator/imported_memory.h"

namespace plimsoll {

// Where an address lies.
struct Location {
  Address block = 0;
  Bytes block_size = 0;
  Bytes requested = 0;
  Address segment = 0;  // the driver's allocation around the block; if virtual, the block itself
  Bytes segment_size = 0;
  StreamId stream = 0;
  PoolId pool;
  bool is_virtual = false;  // the memory is mapped handles, not one allocation of the driver
};

// The memory behind a block, for another process.
struct ExportedMemory {
  Bytes offset = 0;                           // of the block in the first piece
  std::vector<ImportedMemory::Piece> pieces;  // by address, without gaps
};

class LiveAllocator {
 public:
  LiveAllocator() = default;
  LiveAllocator(const LiveAllocator&) = delete;
  LiveAllocator& operator=(const LiveAllocator&) = delete;
  virtual ~LiveAllocator() = default;

  // `size` > 0 bytes for work on `stream`. Throws OutOfMemory.
  virtual Address allocate(Bytes size, StreamId stream) = 0;
  // A block of exactly these bytes, of free memory of that pool and stream. Throws
  // std::invalid_argument if any of it is in use or has no memory.
  virtual void allocate_at(Address address, Bytes size, StreamId stream, PoolId pool) = 0;
  // Both are false, and nothing is done, if no live block begins at `address`.
  virtual bool free(Address address) = 0;
  virtual bool record_stream(Address address, StreamId stream) = 0;
  // `address` may be anywhere inside a live block; nothing if it is in none.
  [[nodiscard]] virtual std::optional<Location> locate(Address address) const = 0;
  virtual void empty_cache(PoolId pool) = 0;

  virtual void begin_allocate_to_pool(PoolId pool, Allocator::Filter filter) = 0;
  virtual void end_allocate_to_pool(PoolId pool) = 0;
  virtual void begin_graph_capture() = 0;
  virtual void end_graph_capture() = 0;
  virtual void use_pool(PoolId pool) = 0;
  virtual void release_pool(PoolId pool) = 0;
  [[nodiscard]] virtual int pool_uses(PoolId pool) const = 0;
  virtual void set_pool_option(PoolId pool, PoolOption option, bool on) = 0;

  virtual void set_limit(std::optional<Bytes> limit) = 0;
  [[nodiscard]] virtual std::optional<Bytes> limit() const = 0;
  [[nodiscard]] virtual Bytes largest_free_block() const = 0;

  [[nodiscard]] virtual Statistics statistics() const = 0;
  virtual void reset_peak_statistics() = 0;
  virtual void reset_accumulated_statistics() = 0;
  [[nodiscard]] virtual std::vector<SegmentInfo> segments() const = 0;
  // As Allocator::set_observer: called under the lock of the event's block, so it must not call the
  // allocator; by several threads at a time, where blocks have different locks.
  virtual void set_observer(Observer* observer) = 0;

  // The memory behind the live block at `address`. Throws std::invalid_argument if there is none,
  // or if it is not virtual.
  [[nodiscard]] virtual ExportedMemory export_memory(Address address) = 0;
};

// Any allocator that is not thread-safe, behind one lock.
class LockedAllocator final : public LiveAllocator {
 public:
  explicit LockedAllocator(std::unique_ptr<Allocator> allocator)
      : allocator_(std::move(allocator)), by_address_(*allocator_) {}

  Address allocate(Bytes size, StreamId stream) override;
  void allocate_at(Address address, Bytes size, StreamId stream, PoolId pool) override;
  bool free(Address address) override;
  bool record_stream(Address address, StreamId stream) override;
  [[nodiscard]] std::optional<Location> locate(Address address) const override;
  void empty_cache(PoolId pool) override;

  void begin_allocate_to_pool(PoolId pool, Allocator::Filter filter) override;
  void end_allocate_to_pool(PoolId pool) override;
  void begin_graph_capture() override;
  void end_graph_capture() override;
  void use_pool(PoolId pool) override;
  void release_pool(PoolId pool) override;
  [[nodiscard]] int pool_uses(PoolId pool) const override;
  void set_pool_option(PoolId pool, PoolOption option, bool on) override;

  void set_limit(std::optional<Bytes> limit) override;
  [[nodiscard]] std::optional<Bytes> limit() const override;
  [[nodiscard]] Bytes largest_free_block() const override;

  [[nodiscard]] Statistics statistics() const override;
  void reset_peak_statistics() override;
  void reset_accumulated_statistics() override;
  [[nodiscard]] std::vector<SegmentInfo> segments() const override;
  void set_observer(Observer* observer) override;

  [[nodiscard]] ExportedMemory export_memory(Address address) override;

 private:
  mutable std::mutex mutex_;
  std::unique_ptr<Allocator> allocator_;
  ByAddress by_address_;
};

}  // namespace plimsoll
