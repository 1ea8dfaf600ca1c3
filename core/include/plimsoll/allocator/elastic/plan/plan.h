// Makes plans. A plan says which pieces are to be mapped where, so that a request has memory.
//
// The functions here read the allocator's records (books/), call no driver and change nothing;
// `Applier` carries a plan out. The caller holds the allocator's `mutex_` and the lock of the
// request's arena. For `plan_growth`, `plan_growth_at` and `plan_whole_pieces`, the caller also
// holds the locks of all other arenas that may give memory.
//
// `MappedSpace::expected` says where a request is to lie, and piece_sizes.h decides how large new
// pieces are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "plimsoll/allocator/elastic/books/arenas.h"

namespace plimsoll {

// A piece of memory and the address where it is to lie. The memory is a free piece, or new memory.
// All new memory of a gap and tier is planned as one filling, and is cut into pieces afterwards.
struct Filling {
  Address address = 0;
  Bytes size = 0;
  Tier tier = Tier::dedicated;
  FreePiece from = {};     // null for new memory
  bool is_mapped = false;  // the piece is still mapped at `address`: no driver call
  Bytes gap = 0;           // for new memory: size of the whole gap, or 0 if the memory is not cut
  Bytes missing = 0;       // for new memory: bytes that the gap still lacks, from `address` on

  [[nodiscard]] bool is_new() const { return from.piece == nullptr; }
};

// The steps for a request, in this order. Afterwards the memory is free in the request's space.
struct Plan {
  std::vector<Address> cleared;   // retired addresses, to be unmapped first
  std::vector<Filling> fillings;  // in the order in which they are mapped
  Bytes lacks_addresses = 0;      // not 0: reserve this many bytes of addresses and plan again

  [[nodiscard]] bool makes_memory() const {
    return std::ranges::any_of(fillings, &Filling::is_new);
  }
  [[nodiscard]] Bytes new_memory(Tier tier) const {
    Bytes size = 0;
    for (const Filling& each : fillings) size += each.is_new() && each.tier == tier ? each.size : 0;
    return size;
  }
};

// Returns a plan by which all memory of the request returns to one place without a driver call. For
// a large request, this is its place in the previous step or in the step before that. For a small
// request it may be any place, because the places of past small requests are not kept. Returns
// nothing if no such place gets all its memory back in this way.
[[nodiscard]] std::optional<Plan> plan_return(const MappedSpace& space, Bytes size);
// Does what `plan_return` does, but only for the place in the previous step, and only if the
// program surely repeats that step. Callers try this plan before they take any free block, because
// a later request of the step may need the memory of that block.
[[nodiscard]] std::optional<Plan> plan_sure_return(const MappedSpace& space, Bytes size);

// Returns whether a wait for the stream pays off. It does if two conditions hold: the request can
// lie at its place in the previous step only after the wait, and at least 16 pieces then return
// there. Mapping 16 pieces elsewhere would take the host longer than the wait, and the stream is
// busy during the wait. A request that lies elsewhere would also displace other requests, whose
// memory would then have to be mapped again.
[[nodiscard]] bool gains_by_waiting(const MappedSpace& space, Bytes size);

// Returns a plan that fills a place with pieces that return, other free pieces and new memory. If
// little has to be mapped at the request's place in the previous step, the plan fills that place.
// Otherwise it fills the cheapest place. If the space may use both tiers, at most `dedicated_room`
// bytes of the new memory are dedicated; the rest is shared.
[[nodiscard]] Plan plan_growth(const Arenas& arenas, const MappedSpace& space, Bytes size,
                               Bytes dedicated_room);
// Both functions return a plan by which the request lies at `address`; nothing if that is not
// possible. `plan_return_to` only lets pieces return to the place. `plan_growth_at` also maps other
// free pieces and new memory there.
[[nodiscard]] std::optional<Plan> plan_return_to(const MappedSpace& space, Bytes size,
                                                 Address address);
[[nodiscard]] std::optional<Plan> plan_growth_at(const Arenas& arenas, const MappedSpace& space,
                                                 Bytes size, Address address);
// Returns whether the request can lie at this address only after the stream is done with memory
// that was freed there.
[[nodiscard]] bool waits_to_lie_at(const MappedSpace& space, Bytes size, Address address);

// Returns a plan that maps free pieces side by side in a hole, and needs no new memory. The pieces
// together are at least as large as the request. Returns nothing if the free pieces do not suffice,
// or if the space never splits blocks.
[[nodiscard]] std::optional<Plan> plan_whole_pieces(const Arenas& arenas, const MappedSpace& space,
                                                    Bytes size);

}  // namespace plimsoll
