// Gives memory to addresses: decides which pieces fill a place, makes what is missing, and maps all
// of it or nothing.
//
// How large new pieces are: many small ones leave little over, few large ones are mapped quickly. A
// request below 64 MiB makes a piece of its own size, as the next one like it will take all of it;
// larger ones are made of pieces in proportion to what is reserved, or to themselves where they are
// more, 2 to 16 MiB.
//
// No plan for dedicated memory depends on a limit: `fill` alone asks whether new memory may be had.
// So a program gets the same places under any limit, until memory is refused (docs/elastic.md, "A
// limit never makes a program need more").
//
// Everything here is guarded by the allocator's `mutex_`, and by the locks of the arenas involved,
// which the caller holds.
#pragma once

#include <optional>
#include <vector>

#include "plimsoll/allocator/elastic/arenas.h"
#include "plimsoll/allocator/elastic/driver_memory.h"
#include "plimsoll/allocator/elastic/moves.h"
#include "plimsoll/allocator/elastic/place_search.h"

namespace plimsoll {

class Filler {
 public:
  static constexpr Bytes kLargestOwnPiece = 64 * kMiB;

  Filler(Driver& driver, Arenas& arenas, DriverMemory& memory, const Ledger& ledger, Moves& moves)
      : driver_(driver), arenas_(arenas), memory_(memory), ledger_(ledger), moves_(moves) {}

  // The pieces that come back to retired addresses of the place; `pieces` has them no more.
  [[nodiscard]] static std::vector<Filling> revivals(const MappedSpace& space, const Place& place,
                                                     FreePieces& pieces);
  // What fills the place: pieces that come back to it, then other free ones, then new memory. Takes
  // the first out of `pieces`.
  [[nodiscard]] std::vector<Filling> plan(MappedSpace& space, const Place& place,
                                          FreePieces& pieces) const;
  // Without new memory, somewhere else, and with pieces that may be more than the request needs.
  // Nothing if they do not suffice.
  [[nodiscard]] std::optional<std::vector<Filling>> plan_with_whole_pieces(
      MappedSpace& space, Bytes size, std::vector<FreePiece> pieces);
  // Makes, clears, maps and commits. False, and nothing has changed, if the limit or the driver
  // refuses. Throws DriverError.
  [[nodiscard]] bool fill(MappedSpace& space, std::vector<Filling>& fillings,
                          const std::vector<Address>& cleared = {});
  // All or nothing, of what is not mapped already. If that fails nothing of it stays mapped, or
  // what the driver does not unmap is retired.
  [[nodiscard]] Status map(MappedSpace& space, const std::vector<Filling>& fillings);

 private:
  static constexpr Bytes kOwnPiecePart = 32;  // of the arena, at most
  static constexpr Bytes kLargestPart = 16 * kMiB;
  static constexpr Bytes kFewestParts = 64;                // that make up all that is reserved
  static constexpr Bytes kMostParts = 512;                 // likewise
  static constexpr Bytes kLargestForSmall = 4 * kGranule;  // of the pieces that small requests pin

  void fill_gap(const MappedSpace& space, const Gap& gap, Bytes& dedicated_room,
                std::vector<FreePiece>& sources, std::vector<Filling>& fillings) const;
  [[nodiscard]] Bytes piece_size(const MappedSpace& space, Bytes missing, Bytes gap) const;
  [[nodiscard]] Status create(const MappedSpace& space, std::vector<Filling>& fillings,
                              Bytes shared_room);
  [[nodiscard]] Status clear(MappedSpace& space, std::vector<Address> retired);

  Driver& driver_;
  Arenas& arenas_;
  DriverMemory& memory_;
  const Ledger& ledger_;
  Moves& moves_;
};

}  // namespace plimsoll
