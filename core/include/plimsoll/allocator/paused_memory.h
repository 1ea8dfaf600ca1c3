// Memory that is taken off the card for a while: what was mapped at some addresses is copied to
// page-locked memory, unmapped and given to the driver, and later made, mapped and filled again.
// The addresses stay reserved, so whoever knows them finds the same content there afterwards.
//
// Copies run while the next pieces are mapped or the last ones unmapped, so that a large region
// takes as long as its bytes take over the bus. Each step succeeds as a whole or is undone.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "plimsoll/allocator/host_pool.h"
#include "plimsoll/allocator/mapped_space.h"
#include "plimsoll/driver/driver.h"

namespace plimsoll {

struct PausedPiece {
  MappedSpace* space = nullptr;
  Address address = 0;
  Piece piece;  // its handle is 0 while it is off the card
};

class PausedMemory {
 public:
  // `pieces` are on the card, by address. Takes memory of `backup` for all of them, which outlives
  // this; if it is null their content will be lost. Throws HostOutOfMemory.
  PausedMemory(Driver& driver, HostPool* backup, std::vector<PausedPiece> pieces);
  PausedMemory(PausedMemory&&) noexcept = default;
  PausedMemory& operator=(PausedMemory&&) = delete;
  ~PausedMemory();

  // Takes all pieces off the card. The device is idle. If that fails they are put back; where the
  // driver refuses even that, some stay off, with their content in the backup.
  Status take_off();
  // Puts all pieces back that are off the card. If that fails they are off as before.
  Status put_back();

  [[nodiscard]] const std::vector<PausedPiece>& pieces() const { return pieces_; }
  [[nodiscard]] Bytes size() const;      // of all pieces
  [[nodiscard]] Bytes size_off() const;  // of those that are off the card
  [[nodiscard]] bool has_backup() const { return backup_ != nullptr; }
  void visit_backup(const std::function<void(Address, Bytes)>& visit) const;
  // Handles that the driver did not take back.
  [[nodiscard]] std::vector<Handle> take_unreleased();

 private:
  static constexpr Bytes kBatch = 128 * kMiB;

  // Some pieces and their place in the backup.
  struct Batch {
    std::size_t first = 0;
    std::size_t last = 0;
    Bytes size = 0;
    Address backup = 0;
  };
  enum class Direction : std::uint8_t { to_backup, from_backup };

  template <typename Function>
  Status for_each_run(const Batch& batch, Function function) const;
  Status copy(const Batch& batch, Direction direction) const;
  Status take_off(PausedPiece& piece);
  Status put_back(const Batch& batch, std::vector<PausedPiece*>& put);

  Driver& driver_;
  HostPool* backup_;
  std::vector<PausedPiece> pieces_;
  std::vector<Batch> batches_;
  std::vector<Handle> unreleased_;
};

}  // namespace plimsoll
