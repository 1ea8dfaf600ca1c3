// How large the pieces of new memory are: many small ones leave little over, few large ones are
// mapped quickly.
//
//   small requests           one granule; so are gaps above the border of a planned area
//   a request that is small  one piece of its own size, since the next request like it will take
//   against its arena        all of it: up to 1/32 of the arena, and 64 MiB
//   others                   half of what is still missing, but 1/512 to 1/64 of what is reserved
//                            (or of the gap, if that is more), 2 to 16 MiB: so few are mapped, the
//                            last are small, and a live block that ends there holds little
//
// They do not depend on a limit, so a limit never makes a program need more (docs/elastic.md).
//
// Pure: they call no driver and change no books.
#pragma once

#include "plimsoll/allocator/elastic/plan/plan.h"

namespace plimsoll {

inline constexpr Bytes kLargestOwnPiece = 64 * kMiB;

// Cuts the plan's new memory into pieces. `reserved` is what the allocator has reserved.
void cut_new_memory(Plan& plan, const MappedSpace& space, Bytes reserved);

}  // namespace plimsoll
