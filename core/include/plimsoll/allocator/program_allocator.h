// An allocator as a program uses it: the program names a block by its address, and may call the
// allocator from any thread.
//
// This class has the functions that take or return an address. `hold` gives access to the other
// functions of Allocator. If a function fails, it changes nothing, and throws the exception that
// Allocator's function throws.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "plimsoll/allocator/allocator.h"
#include "plimsoll/allocator/imported_memory.h"
#include "plimsoll/base/address_map.h"

namespace plimsoll {

// The block and the segment around an address.
struct Location {
  Address block = 0;
  Bytes block_size = 0;
  Bytes requested = 0;
  Address segment = 0;  // the driver's allocation, or the block if `is_virtual`
  Bytes segment_size = 0;
  StreamId stream = 0;
  PoolId pool;
  bool is_virtual = false;  // whether the memory is mapped from handles (virtual memory management)
};

// The memory behind a block, for another process.
struct ExportedMemory {
  Bytes offset = 0;                           // the block's offset in the first piece
  std::vector<ImportedMemory::Piece> pieces;  // in order of address, without gaps
};

class ProgramAllocator {
 public:
  // Access to the Allocator, whose functions take blocks instead of addresses. An allocator that is
  // not thread-safe stays locked while the Held exists.
  class Held {
   public:
    explicit Held(Allocator& allocator, std::unique_lock<std::mutex> lock = {})
        : lock_(std::move(lock)), allocator_(&allocator) {}
    Allocator* operator->() const { return allocator_; }
    Allocator& operator*() const { return *allocator_; }

   private:
    std::unique_lock<std::mutex> lock_;
    Allocator* allocator_;
  };

  ProgramAllocator() = default;
  ProgramAllocator(const ProgramAllocator&) = delete;
  ProgramAllocator& operator=(const ProgramAllocator&) = delete;
  virtual ~ProgramAllocator() = default;

  // Returns the address of `size` > 0 bytes for work on `stream`. Throws OutOfMemory.
  virtual Address allocate(Bytes size, StreamId stream) = 0;
  // Allocates exactly this range of free memory of that pool and stream. Throws
  // std::invalid_argument if a part of it is in use or has no memory.
  virtual void allocate_at(Address address, Bytes size, StreamId stream, PoolId pool) = 0;
  // Return false, and do nothing, if no live block begins at `address`.
  virtual bool free(Address address) = 0;
  virtual bool record_stream(Address address, StreamId stream) = 0;
  // Returns the rounded size of the live block that begins at `address`; nothing if there is none.
  [[nodiscard]] virtual std::optional<Bytes> block_size(Address address) const = 0;
  // Returns the block and segment around `address`, which may be anywhere inside a live block;
  // nothing if no live block contains it. Takes longer if the segment has many blocks.
  [[nodiscard]] virtual std::optional<Location> locate(Address address) const = 0;
  // Returns the memory behind the live block at `address`. Throws std::invalid_argument if there is
  // no such block, or if its memory is not mapped from handles (`Location::is_virtual`).
  [[nodiscard]] virtual ExportedMemory export_memory(Address address) = 0;

  // Locks the allocator, and returns access to its pools, limits, segments, observers and resets of
  // statistics. Destroy the result before you call a function above that takes an address: that
  // function may wait forever for the lock that the result holds.
  [[nodiscard]] virtual Held hold() = 0;
  [[nodiscard]] virtual Statistics statistics() const = 0;
};

// Makes an allocator that is not thread-safe usable from several threads, behind one lock.
class LockedAllocator final : public ProgramAllocator {
 public:
  explicit LockedAllocator(std::unique_ptr<Allocator> allocator)
      : allocator_(std::move(allocator)) {}

  Address allocate(Bytes size, StreamId stream) override;
  void allocate_at(Address address, Bytes size, StreamId stream, PoolId pool) override;
  bool free(Address address) override;
  bool record_stream(Address address, StreamId stream) override;
  [[nodiscard]] std::optional<Bytes> block_size(Address address) const override;
  [[nodiscard]] std::optional<Location> locate(Address address) const override;
  [[nodiscard]] ExportedMemory export_memory(Address address) override;

  [[nodiscard]] Held hold() override { return Held(*allocator_, std::unique_lock(mutex_)); }
  [[nodiscard]] Statistics statistics() const override;

 private:
  // Returns the live block that begins at `address`; null if there is none.
  [[nodiscard]] Block* find(Address address) const;

  mutable std::mutex mutex_;
  std::unique_ptr<Allocator> allocator_;
  AddressMap<Block*> live_;
};

}  // namespace plimsoll
