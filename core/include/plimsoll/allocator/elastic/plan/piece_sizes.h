// Decides how large the pieces of new memory are. Many small pieces waste little memory; few
// large pieces are mapped quickly. The first of these rules that applies decides:
//
// - In a space that never splits blocks, all new memory of a gap is one piece.
// - For a request of up to 1 MiB, each piece is one granule.
// - In a planned area, each piece is half a part. planned_area.h says what the parts are.
// - If no free piece fills a part of a gap, and the gap is at most 1/32 of the arena's memory and
//   at most 64 MiB, one new piece fills the gap. The next request of this size will take the whole
//   piece.
// - In any other gap, each piece is half of the bytes that are still missing, within two bounds.
//   The lower bound is 1/512 and the upper bound 1/64 of all reserved memory, or of the gap if the
//   gap is larger. Both bounds are at least 2 MiB and at most 16 MiB. All these sizes are rounded
//   down to powers of two. The last piece may be smaller than the lower bound. With these sizes,
//   only a few pieces have to be mapped. The last pieces are small, so a live block that ends in
//   one of them keeps little memory from moving.
//
// The sizes do not depend on the memory limit. So under a limit a program needs no more memory than
// without one (docs/elastic.md).
//
// The functions here call no driver, and change only the plan.
#pragma once

#include "plimsoll/allocator/elastic/plan/plan.h"

namespace plimsoll {

inline constexpr Bytes kLargestOwnPiece = 64 * kMiB;

// Cuts the plan's new memory into pieces. `reserved` is the sum of the allocator's reserved bytes.
void cut_new_memory(Plan& plan, const MappedSpace& space, Bytes reserved);

}  // namespace plimsoll
