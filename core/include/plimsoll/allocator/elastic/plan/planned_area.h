// The area of addresses in which a plan of the whole program has the large requests of a stream.
//
//   below the border   mapped in parts of up to 32 MiB, from the first request on that lies in one:
//                      most of an area is in use at the program's peak
//   above the border   the top of an area is in use for a short time, so its memory serves other
//                      requests as well, in granules: of the stream at once, of other streams when
//                      the stream is done with it
//
// When the plan wants a place at the top whose memory serves elsewhere, free memory fills the
// place, or new memory. So what is placed where does not depend on time, only how much memory there
// is.
//
// Pure: they call no driver and change no books.
#pragma once

#include <vector>

#include "plimsoll/allocator/elastic/plan/plan.h"

namespace plimsoll {

// New memory for the holes of all parts below the border in which the range lies.
[[nodiscard]] Plan plan_parts(const MappedSpace& planned, const AddressRange& range);

// Adds the free pieces of the arena's planned area that may serve other requests, and were freed at
// `age` or before.
void add_area_top(const Arena& arena, std::uint64_t age, std::vector<FreePiece>& found);

}  // namespace plimsoll
