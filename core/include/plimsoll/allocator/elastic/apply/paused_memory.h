// Memory that is taken off the card for a while: what was mapped at some addresses is copied to
// page-locked memory, unmapped and given to the driver, and later made, mapped and filled again.
// The addresses stay reserved, so whoever knows them finds the same content there afterwards.
//
// Copies run while the next pieces are mapped or the last ones unmapped, so that a large region
// takes as long as its bytes take over the bus. What goes on to a file passes through a few
// buffers, of which one is copied while another is written. Each step succeeds as a whole or is
// undone.
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "plimsoll/allocator/elastic/apply/driver_memory.h"
#include "plimsoll/allocator/host/backup_store.h"
#include "plimsoll/allocator/host/host_pool.h"
#include "plimsoll/driver/driver.h"

namespace plimsoll {

struct PausedPiece {
  Piece* piece = nullptr;  // it has no memory while it is off the card
  bool is_counted = true;  // as memory on the card
  Bytes backup = 0;        // where its content lies in the backup, if there is one
  std::size_t batch = 0;   // which part of the region it belongs to
};

// Where content is kept: in memory of `pool`; in `store`, if there is one, through memory of `pool`
// that is held no longer than a step takes; nowhere, if there is neither.
struct Backup {
  HostPool* pool = nullptr;  // outlives all that is kept
  std::unique_ptr<BackupStore> store = {};
};

class SliceRing;

class PausedMemory {
 public:
  // `pieces` are on the card, by address. Throws HostOutOfMemory if the pool has not enough.
  PausedMemory(Driver& driver, Backup backup, std::vector<PausedPiece> pieces);
  PausedMemory(PausedMemory&&) noexcept = default;
  PausedMemory& operator=(PausedMemory&&) = delete;
  ~PausedMemory();

  // Takes all pieces off the card. The device is idle. If that fails they are as they were, some
  // with other memory; where the driver refuses even that, some stay off, with their content in the
  // backup. Throws, with a store, BackupError and what the pool throws; then nothing has changed.
  Status take_off();
  // Puts all pieces back, with their content. If that fails they are off again; where the driver
  // refuses even that, some are on, to be filled by the next `put_back`. Throws like `take_off`.
  Status put_back();
  // Nobody needs these pieces any more.
  void forget(const std::set<const Piece*>& pieces);

  [[nodiscard]] std::vector<PausedPiece>& pieces() { return pieces_; }
  [[nodiscard]] Bytes size_off() const;  // of the pieces that are off the card

 private:
  // Mapped before the first copy and unmapped after the last; the bus waits meanwhile.
  static constexpr Bytes kBatch = 32 * kMiB;
  static constexpr Bytes kMostChunk = 128 * kMiB;

  using Batch = std::span<PausedPiece>;
  struct Chunk {  // of the backup
    Bytes offset = 0;
    Address address = 0;
    Bytes size = 0;
  };

  void number_batches();
  [[nodiscard]] std::vector<Batch> batches();
  template <typename Function>
  static Status for_each_run(Batch batch, Function function);
  template <typename Function>
  static Status for_each_slice(Batch batch, Bytes most, Function function);
  template <typename Function>
  Status for_each_chunk(Batch batch, Function function) const;
  void lock_chunks(Bytes total);
  Status save();
  Status load(Batch batch, SliceRing* ring) const;
  Status copy_to_backup(Batch batch) const;
  void undo_take_off(PausedPiece& each);
  Status put_on(Batch batch, std::vector<Piece*>& put);
  [[nodiscard]] Bytes size() const;

  Driver& driver_;
  Backup backup_;
  std::vector<PausedPiece> pieces_;
  std::vector<Chunk> chunks_;  // of the pool, without a store; by offset, one after the other
};

}  // namespace plimsoll
