// The area of addresses in which a plan of the whole program has the large requests of a stream.
//
//   below the border   mapped in parts of up to 32 MiB, from the first request on that lies in one:
//                      most of an area is in use at the program's peak
//   above the border   the top of an area is in use at the peak alone, so its memory serves other
//                      requests of the stream as well, in granules
//
// Other streams get nothing of an area while its plan is followed: they would have to know when the
// stream is done, and what is placed where must not depend on time.
//
// Pure: they call no driver and change no books.
#pragma once

#include <vector>

#include "plimsoll/allocator/elastic/plan/plan.h"

namespace plimsoll {

// New memory for the holes of all parts below the border in which the range lies.
[[nodiscard]] Plan plan_parts(const MappedSpace& planned, const AddressRange& range);

// Free pieces of the arena's planned area that may serve other requests of the stream.
void add_area_top(const Arena& arena, std::vector<FreePiece>& found);

}  // namespace plimsoll
