// Memory that is taken off the card for a while: what was mapped at some addresses is copied to
// page-locked memory, unmapped and given to the driver, and later made, mapped and filled again.
// The addresses stay reserved, so whoever knows them finds the same content there afterwards.
//
// Copies run while the next pieces are mapped or the last ones unmapped, so that a large region
// takes as long as its bytes take over the bus. Each step succeeds as a whole or is undone.
#pragma once

#include <cstddef>
#include <functional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "plimsoll/allocator/host_pool.h"
#include "plimsoll/allocator/mapped_space.h"
#include "plimsoll/driver/driver.h"

namespace plimsoll {

struct PausedPiece {
  MappedSpace* space = nullptr;
  Address address = 0;
  Piece piece;         // its handle is 0 while it is off the card
  Address backup = 0;  // where its content is kept, if it is
};

// Maps the piece and gives access to it, or leaves all as it was.
Status map_with_access(Driver& driver, Address address, const Piece& piece);

class PausedMemory {
 public:
  // `pieces` are on the card, by address. Takes memory of `backup` for all of them, which outlives
  // this; if it is null their content will be lost. Throws HostOutOfMemory.
  PausedMemory(Driver& driver, HostPool* backup, std::vector<PausedPiece> pieces);
  PausedMemory(PausedMemory&&) noexcept = default;
  PausedMemory& operator=(PausedMemory&&) = delete;
  ~PausedMemory();

  // Takes all pieces off the card. The device is idle. If that fails they are as they were; where
  // the driver refuses even that, some stay off, with their content in the backup.
  Status take_off();
  // Puts all pieces back, with the content that their backup has now. If that fails they are off
  // again; where the driver refuses even that, some are on, to be filled by the next `put_back`.
  Status put_back();
  // Nobody needs the pieces at these addresses any more.
  void forget(const std::set<Address>& addresses);

  [[nodiscard]] const std::vector<PausedPiece>& pieces() const { return pieces_; }
  [[nodiscard]] Bytes size_off() const;  // of the pieces that are off the card
  void visit_backup(const std::function<void(Address, Bytes)>& visit) const;
  // Handles that the driver did not take back.
  [[nodiscard]] std::vector<Handle> take_unreleased();

 private:
  static constexpr Bytes kBatch = 128 * kMiB;

  enum class Direction : std::uint8_t { to_backup, from_backup };
  using Batch = std::span<PausedPiece>;

  [[nodiscard]] std::vector<Batch> batches();
  template <typename Function>
  static Status for_each_run(Batch batch, Function function);
  Status copy(Batch batch, Direction direction) const;
  Status put_back(Batch batch, std::vector<PausedPiece*>& put);
  void drop_handle(PausedPiece& piece);

  Driver& driver_;
  HostPool* backup_;
  std::vector<PausedPiece> pieces_;
  std::vector<std::pair<Address, Bytes>> chunks_;  // of the backup
  std::vector<Handle> unreleased_;
};

}  // namespace plimsoll
