// How pieces change their addresses, and with them the streams, pools and sizes that they serve.
//
// The driver maps first, then `commit` changes the books: neither stops halfway. A piece that moves
// within its space keeps its home, and goes back to it as soon as it is free; what another stream
// may use next has no way back.
// Everything here is guarded by the allocator's `mutex_`, and by the locks of the arenas.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "plimsoll/allocator/elastic/books/ledger.h"

namespace plimsoll {

// What gets memory: addresses of a space, from a free piece or a new one.
struct Filling {
  Address address = 0;
  Bytes size = 0;
  Tier tier = Tier::dedicated;
  Piece* from = nullptr;             // the free piece, where it serves now
  Block* block = nullptr;            // the free block around it
  bool is_mapped = false;            // the piece comes back to where it is still mapped
  std::unique_ptr<Piece> made = {};  // the new piece, as soon as there is one

  [[nodiscard]] static Filling by(const FreePiece& free, bool is_mapped = false) {
    return {0, free.piece->size, free.piece->tier, free.piece, free.block, is_mapped};
  }
  [[nodiscard]] static Filling anew(Bytes size, Tier tier) { return {0, size, tier}; }
};

class Moves {
 public:
  explicit Moves(Ledger& ledger) : ledger_(ledger) {}

  // Pieces that were mapped at another address so far.
  [[nodiscard]] std::uint64_t count() const { return count_; }

  // All is mapped that the space was to get: its memory is there from now on, free. The arenas that
  // give pieces are locked.
  void commit(MappedSpace& space, std::vector<Filling>& fillings);
  // Free pieces of these bytes go home, where nothing else was mapped: so a program that repeats
  // itself finds free memory as it found it before. The arena is locked.
  void go_home(MappedSpace& space, const AddressRange& range);

 private:
  Ledger& ledger_;
  std::uint64_t count_ = 0;
};

}  // namespace plimsoll
