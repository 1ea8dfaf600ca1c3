// Moves spilled blocks from shared memory to the card, while they keep their addresses.
//
// Each piece is whole in one tier or the other at any time: new memory is filled at addresses of
// nobody's, the scratch, and then mapped where the old one was. Between two calls nothing is mapped
// at the scratch, or `is_scratch_mapped_` says that the driver refused to unmap it. Everything here
// is guarded by the allocator's `mutex_`; it takes the locks of arenas itself.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plimsoll/allocator/elastic/apply/release.h"

namespace plimsoll {

class TierMover {
 public:
  TierMover(Driver& driver, Arenas& arenas, QueuedWork& work, DriverMemory& memory,
            Release& release, Ledger& ledger, Lending& lending)
      : driver_(driver),
        arenas_(arenas),
        work_(work),
        memory_(memory),
        release_(release),
        ledger_(ledger),
        lending_(lending) {}

  // See ElasticAllocator::rebalance; not to be called while a graph is captured.
  Bytes rebalance(Bytes most);
  // Unmaps what the driver refused to unmap at the scratch before.
  Status clear_scratch();

 private:
  // A piece of shared memory that is to move to the card.
  struct Move {
    std::uint64_t lent = 0;  // of the block that needs it; the lower, the longer it lives
    Piece* piece = nullptr;
    std::unique_ptr<Piece> by = {};  // the new memory
    bool is_done = false;            // it is mapped where the piece is
  };

  [[nodiscard]] std::vector<Move> moves_within(Bytes room);
  [[nodiscard]] Status prepare_scratch();
  [[nodiscard]] Status move(std::vector<Move>& moves);
  [[nodiscard]] Status fill(std::vector<Move>& moves);

  Driver& driver_;
  Arenas& arenas_;
  QueuedWork& work_;
  DriverMemory& memory_;
  Release& release_;
  Ledger& ledger_;
  Lending& lending_;
  AddressRange scratch_;
  bool is_scratch_mapped_ = false;
};

}  // namespace plimsoll
