// Plans the memory of a planned area: the addresses in which a plan of the whole program places a
// stream's large requests.
//
//   below the border   mapped in parts, each at the first request that lies in it, because most of
//                      an area is in use at the program's peak. A part has 1/1024 to 1/512 of the
//                      area, and 2 to 32 MiB
//   above the border   mapped in granules. The top of an area is in use for a short time, so its
//                      memory serves other requests as well: those of the stream at once, those of
//                      other streams when the stream is done with it
//
// When a place at the top is needed and its memory serves elsewhere, other free memory or new
// memory fills the place. So where requests lie does not depend on time; only the amount of memory
// does.
//
// A program that deviates from its plan has requests outside the area. Once these would need more
// memory than the plan has there (PlanFollower::most_outside), all free memory of the area serves
// other requests too, and a place is filled without the rest of its part. When that begins depends
// on time if the program uses several streams, as all amounts of memory do then.
//
// The functions here call no driver and change no books.
#pragma once

#include <vector>

#include "plimsoll/allocator/elastic/plan/plan.h"

namespace plimsoll {

// Returns how much memory is mapped at once at an address of a planned area, in bytes.
[[nodiscard]] Bytes part_at(const MappedSpace& planned, Address address);

// Returns a plan that maps new memory into the holes of each part that the range touches. Only
// parts below the border count.
[[nodiscard]] Plan plan_parts(const MappedSpace& planned, const AddressRange& range);

// Adds the free pieces of the arena's planned area that may serve other requests, and were freed at
// `age` or before.
void add_area_top(const Arena& arena, std::uint64_t age, std::vector<FreePiece>& found);

}  // namespace plimsoll
