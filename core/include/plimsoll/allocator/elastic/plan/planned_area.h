// Plans the memory of a planned area: the addresses in which a plan of the whole program places a
// stream's large requests.
//
// A border divides each area. Most of the memory below the border is in use at the program's peak.
// The memory below the border is divided into parts. The size of a part is 1/1024 to 1/512 of the
// area, and 2 to 32 MiB. The first request that lies in a part gets the whole part mapped.
//
// The top, which is the memory above the border, is in use for a short time only, so it is mapped
// in granules. Free memory of the top may move to requests that lie elsewhere. Requests of the
// area's stream get it without a wait. Requests of other streams get it once the area's stream is
// done with it.
//
// If a request is to lie at the top, and the memory of its place has moved away, other free memory
// or new memory is mapped at that place. So the addresses of requests never depend on timing; only
// the amount of memory does.
//
// A program that deviates from its plan has requests outside the area. Once these requests need
// more memory than PlanFollower::most_outside, all free memory of the area serves them too. From
// then on, new requests in the area get only the memory that they need instead of whole parts. If
// the program uses several streams, the moment of this change depends on timing.
//
// The functions here call no driver and do not change the allocator's records (books/).
#pragma once

#include <vector>

#include "plimsoll/allocator/elastic/plan/plan.h"

namespace plimsoll {

// Returns the size of the unit in which memory is mapped at an address of a planned area. If the
// address lies below the border, the unit is a part. Otherwise the unit is a granule.
[[nodiscard]] Bytes part_at(const MappedSpace& planned, Address address);

// Returns a plan that maps new memory into the holes of each part that the range touches. The top
// has no parts, so the plan maps nothing there.
[[nodiscard]] Plan plan_parts(const MappedSpace& planned, const AddressRange& range);

// Adds to `found` the free pieces at the top of the arena's planned area that were freed at `age`
// or before. Adds nothing if all free memory of the area may serve other requests
// (`Arena::planned_gives`), because `Arena::free_pieces` then returns these pieces.
void add_area_top(const Arena& arena, std::uint64_t age, std::vector<FreePiece>& found);

}  // namespace plimsoll
