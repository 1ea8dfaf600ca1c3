// The ledger counts how much the elastic allocator has reserved. If a piece (piece.h) is made,
// released or moved, the ledger updates the statistics and adds an event to the history.
//
// Invariants, over all pieces that have memory:
// - reserved == sum of piece.size == sum of arena.reserved == statistics' reserved_bytes
// - shared_reserved == sum of piece.size over the pieces in shared memory == statistics'
//   shared_reserved_bytes
// - pool.reserved == sum of arena.reserved over the pool's arenas
// - statistics' segment == number of pieces
//
// Callers hold the allocator's `mutex_`, and the lock of each arena whose counts change.
#pragma once

#include <cstdint>

#include "plimsoll/allocator/config.h"
#include "plimsoll/allocator/elastic/books/arena.h"
#include "plimsoll/allocator/event_log.h"
#include "plimsoll/events/statistics.h"

namespace plimsoll {

class Ledger {
 public:
  Ledger(Statistics& statistics, EventLog& log, TorchVersion version)
      : statistics_(statistics), log_(log), version_(version) {}

  [[nodiscard]] Bytes reserved() const { return reserved_; }  // bytes in both tiers
  [[nodiscard]] Bytes shared_reserved() const { return shared_reserved_; }
  [[nodiscard]] Bytes dedicated_reserved() const { return reserved_ - shared_reserved_; }
  [[nodiscard]] Statistics& statistics() { return statistics_; }
  [[nodiscard]] TorchVersion version() const { return version_; }
  // Returns how many times a piece has begun to serve at another address.
  [[nodiscard]] std::uint64_t moves() const { return moves_; }
  void count_moves(std::uint64_t pieces) { moves_ += pieces; }

  // `add` counts a piece that begins to serve in its space, and numbers it. Later pieces get higher
  // numbers. `remove` subtracts a piece that no longer serves there.
  void add(Piece& piece);
  void remove(const Piece& piece);
  // To be called when a piece has left shared memory: subtracts it from the counts of that tier.
  void leave_shared(const Piece& piece);

  // Notes in the history that `piece` was mapped at its address, or unmapped there.
  void note(Action action, const Piece& piece);
  // Does what `note` does, but notes one event for a run of adjacent pieces. Notes the event when
  // the next piece does not continue the run. After the last piece, call `note_run` to note the
  // last run.
  void note_in_run(Action action, const Piece& piece);
  void note_run();

 private:
  struct Run {
    Action action = Action::segment_map;
    const Arena* arena = nullptr;
    AddressRange range;
    Tier tier = Tier::dedicated;
  };
  void note(Action action, const Arena& arena, const AddressRange& range, Tier tier);

  Statistics& statistics_;
  EventLog& log_;
  TorchVersion version_;
  Bytes reserved_ = 0;
  Bytes shared_reserved_ = 0;
  std::uint64_t moves_ = 0;
  std::uint64_t added_ = 0;  // the last `Piece::number` that was given
  Run run_;                  // an event that is not noted yet
};

}  // namespace plimsoll
