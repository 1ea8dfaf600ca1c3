// Takes memory off the card for a while. A pause copies the content to page-locked memory, unmaps
// the memory and releases it to the driver. A resume makes new memory, maps it at the same
// addresses and copies the content back. The addresses stay reserved all the time, so pointers are
// valid again afterwards.
//
// Copies run while the next pieces are mapped or the previous ones unmapped. So a pause or
// resume of a large region takes no longer than the transfer of its bytes over the bus. Content
// that is kept in a file passes through a few buffers. During a pause, the card fills one buffer
// while another is written to the file. During a resume, one is read from the file while another is
// copied to the card. A pause or a resume that fails is undone.
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
  Piece* piece = nullptr;  // has no memory while it is off the card
  bool is_counted = true;  // whether the statistics count it as on the card
  Bytes backup = 0;        // offset of the piece's content in the backup
  std::size_t batch = 0;   // number of the batch in which it is copied
};

// Says where the content of paused memory is kept. If `store` is set, the content goes there, and
// `pool` provides buffers during a pause or a resume. If only `pool` is set, the content is kept in
// the pool's memory. If neither is set, the content is dropped.
struct Backup {
  HostPool* pool = nullptr;  // outlives the paused memory
  std::unique_ptr<BackupStore> store = {};
};

class SliceRing;

class PausedMemory {
 public:
  // `pieces` must be on the card and sorted by address. Throws HostOutOfMemory if the pool cannot
  // hold their content.
  PausedMemory(Driver& driver, Backup backup, std::vector<PausedPiece> pieces);
  PausedMemory(PausedMemory&&) noexcept = default;
  PausedMemory& operator=(PausedMemory&&) = delete;
  ~PausedMemory();

  // Takes all pieces off the card. The device must be idle. If a driver call fails, puts the pieces
  // back, some with new memory. Pieces that the driver refuses to put back stay off, with their
  // content in the backup. If the backup has a store, may throw BackupError and the pool's
  // exceptions. After an exception nothing has changed.
  Status take_off();
  // Puts all pieces back, with their content. If a driver call fails, takes them off again. Pieces
  // that the driver refuses to unmap stay on the card, and the next `put_back` fills them. Throws
  // like `take_off`.
  Status put_back();
  // Drops pieces whose content is not needed any more.
  void forget(const std::set<const Piece*>& pieces);

  [[nodiscard]] std::vector<PausedPiece>& pieces() { return pieces_; }
  [[nodiscard]] Bytes size_off() const;  // sum of the pieces off the card

 private:
  // A batch is small, because the bus is idle while the first batch is mapped and the last one
  // unmapped.
  static constexpr Bytes kBatch = 32 * kMiB;
  static constexpr Bytes kMostChunk = 128 * kMiB;

  using Batch = std::span<PausedPiece>;
  // A part of the backup. It begins at `offset` in the backup, and lies at `address` in the pool.
  struct Chunk {
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
  // The chunks hold the content if the backup has a pool but no store; otherwise there are none.
  // The chunks are sorted by offset and cover the whole backup.
  std::vector<Chunk> chunks_;
};

}  // namespace plimsoll
