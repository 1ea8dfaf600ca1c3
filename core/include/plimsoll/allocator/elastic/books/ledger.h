// The ledger: how much the elastic allocator has reserved. It notes each piece that comes, goes or
// moves in the history and the statistics.
//
// Invariants, over all pieces that have memory:
//   reserved == sum of piece.size == sum of arena.reserved == statistics' reserved_bytes;
//   shared_reserved == sum over the pieces of shared memory == statistics' shared_reserved_bytes;
//   pool.reserved == sum of its arenas'; statistics' segment == number of pieces.
// Everything here is guarded by the allocator's `mutex_`, and an arena's own counts by its lock
// too.
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

  [[nodiscard]] Bytes reserved() const { return reserved_; }  // of both tiers
  [[nodiscard]] Bytes shared_reserved() const { return shared_reserved_; }
  [[nodiscard]] Bytes dedicated_reserved() const { return reserved_ - shared_reserved_; }
  [[nodiscard]] Statistics& statistics() { return statistics_; }
  [[nodiscard]] TorchVersion version() const { return version_; }
  // Pieces that began to serve at another address so far.
  [[nodiscard]] std::uint64_t moves() const { return moves_; }
  void count_moves(std::uint64_t pieces) { moves_ += pieces; }

  // The piece serves at its address from now on; or it does no more.
  void add(const Piece& piece);
  void remove(const Piece& piece);
  // The piece has left shared memory.
  void leave_shared(const Piece& piece);

  // `piece` was mapped at its address, or unmapped there.
  void note(Action action, const Piece& piece);
  // The same, but neighbours make one event, once `note_run` is called.
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
  Run run_;  // that is still to be noted
};

}  // namespace plimsoll
