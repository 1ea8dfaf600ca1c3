// Plans: which pieces are to be mapped where, so that a request has memory.
//
// The functions here read the books, call no driver and change nothing; `Applier` carries a plan
// out. The caller holds the allocator's `mutex_` and the locks of the arenas that are read: the
// request's own, and for `plan_growth`, `plan_growth_at` and `plan_whole_pieces` those of all that
// may give memory.
//
// Where a request is to lie comes from `MappedSpace::expected`; how large new pieces are is decided
// in piece_sizes.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "plimsoll/allocator/elastic/books/arenas.h"

namespace plimsoll {

// Addresses that get memory: from a free piece, or new memory. New memory is planned in one, and
// cut into pieces afterwards.
struct Filling {
  Address address = 0;
  Bytes size = 0;
  Tier tier = Tier::dedicated;
  FreePiece from = {};     // null: new memory
  bool is_mapped = false;  // the piece returns to where it is still mapped
  Bytes gap = 0;           // new memory: the size of the gap that it helps to fill; 0: one piece
  Bytes missing = 0;       // new memory: how much of the gap has no memory, from here on

  [[nodiscard]] bool is_new() const { return from.piece == nullptr; }
};

// What is done for a request, in this order; the memory is then free in the request's space.
struct Plan {
  std::vector<Address> cleared;   // retired addresses, to be unmapped first
  std::vector<Filling> fillings;  // in the order in which they are mapped
  Bytes lacks_addresses = 0;      // not 0: a new plan is due, once the space has so many more

  [[nodiscard]] bool makes_memory() const {
    return std::ranges::any_of(fillings, &Filling::is_new);
  }
  [[nodiscard]] Bytes new_memory(Tier tier) const {
    Bytes size = 0;
    for (const Filling& each : fillings) size += each.is_new() && each.tier == tier ? each.size : 0;
    return size;
  }
};

// All memory of the request returns, without a call of the driver: to where the program had it in
// the step before, or the one before that; for a small request, whose past is not kept, to
// anywhere. Nothing if no such place gets all its memory back so.
[[nodiscard]] std::optional<Plan> plan_return(const MappedSpace& space, Bytes size);
// The same for the step before alone, if the program surely repeats it. This comes before any free
// block is taken: a later request of the step would find that block's memory missing.
[[nodiscard]] std::optional<Plan> plan_sure_return(const MappedSpace& space, Bytes size);

// Whether to wait for the stream: once it is done with what was freed there, the request can lie
// where the program had it, and at least 16 pieces return. To map as much elsewhere takes the host
// longer than to wait, and the stream has work all the while; besides, the request would displace
// others there, which would be mapped anew in turn.
[[nodiscard]] bool gains_by_waiting(const MappedSpace& space, Bytes size);

// The cheapest place for the request, and what fills it: pieces that return, other free pieces, new
// memory. In a space of both tiers, new memory is dedicated as far as `dedicated_room` goes.
[[nodiscard]] Plan plan_growth(const Arenas& arenas, const MappedSpace& space, Bytes size,
                               Bytes dedicated_room);
// The request lies at this address, as a plan of the whole program says; nothing if that is not
// possible. All its memory returns there, or other free pieces and new memory fill the place.
[[nodiscard]] std::optional<Plan> plan_return_to(const MappedSpace& space, Bytes size,
                                                 Address address);
[[nodiscard]] std::optional<Plan> plan_growth_at(const Arenas& arenas, const MappedSpace& space,
                                                 Bytes size, Address address);
// Whether the request can lie there only once the stream is done with what was freed there.
[[nodiscard]] bool waits_to_lie_at(const MappedSpace& space, Bytes size, Address address);

// Without new memory: free pieces, which may be more than the request needs, in a hole. Nothing if
// they do not suffice, or the space does not split.
[[nodiscard]] std::optional<Plan> plan_whole_pieces(const Arenas& arenas, const MappedSpace& space,
                                                    Bytes size);

}  // namespace plimsoll
