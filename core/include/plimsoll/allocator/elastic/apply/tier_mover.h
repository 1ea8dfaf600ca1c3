// Moves blocks that spilled into shared memory back to the card. They keep their addresses.
//
// At any time each piece (piece.h) lies in one tier as a whole. New memory is first mapped at
// scratch addresses, which belong to no block, and the content is copied there. Then the new memory
// is mapped in place of the old. If the driver refuses to unmap the scratch addresses afterwards,
// `is_scratch_mapped_` stays true. Callers hold the allocator's `mutex_`. The functions here lock
// arenas themselves.
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

  // See ElasticAllocator::rebalance. Do not call it during a graph capture.
  Bytes rebalance(Bytes most);
  // Unmaps the scratch addresses if the driver refused to do so before.
  Status clear_scratch();

 private:
  // A piece of shared memory that is to move to the card.
  struct Move {
    // The `lent` number of the block that uses the piece. Blocks that the program got earlier have
    // lower numbers.
    std::uint64_t lent = 0;
    Piece* piece = nullptr;
    std::unique_ptr<Piece> by = {};  // new memory on the card; null if none could be created
    bool is_done = false;            // whether `by` is mapped at the piece's address
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
