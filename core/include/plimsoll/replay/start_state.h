// The state that a recording starts from, when it does not start at the first allocation: the ring
// overflowed, or recording was switched on late.
//
// The final segments are taken back in time, event by event. What remains is exact but for one
// thing: in a large segment the end of a block that was freed later is known only up to a tail of
// 1 MiB that PyTorch may have left unsplit. Such a tail is counted to the block when nothing else
// can lie there, since free blocks of a large pool are always larger, or when the first use of the
// free block behind it starts later.
#pragma once

#include <vector>

#include "plimsoll/allocator/config.h"
#include "plimsoll/events/segment.h"
#include "plimsoll/replay/events.h"

namespace plimsoll {

// Whether the events alone explain the final segments, so that the recording starts from nothing.
// A recording without segments counts as complete.
[[nodiscard]] bool starts_from_nothing(const EventSpan& events,
                                       const std::vector<SegmentInfo>& final_segments);

// Throws ReplayError with the reason if the state cannot be reconstructed.
[[nodiscard]] std::vector<SegmentInfo> reconstruct_start(
    const EventSpan& events, const std::vector<SegmentInfo>& final_segments,
    const AllocatorConfig& config);

}  // namespace plimsoll
