// Decides how large the pieces of new memory are. Many small pieces waste little memory; few
// large pieces are mapped quickly.
//
// - A request of up to 1 MiB gets pieces of one granule.
// - A gap of a planned area gets pieces of half a part. planned_area.h says what the parts are.
// - A request of up to 1/32 of the arena, and of up to 64 MiB, gets one piece of its own size,
//   because the next request of this size will take the whole piece.
// - For a larger request, each piece is half of the bytes that are still missing, within limits.
//   The size must lie between 1/512 and 1/64 of all reserved memory (of the gap, if the gap is
//   larger), and between 2 and 16 MiB. With these sizes, only a few pieces have to be mapped. The
//   last pieces are small, so a live block that ends in one of them keeps little memory from
//   moving.
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
