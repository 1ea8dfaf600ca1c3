// Reconstructs the allocator's state at the start of a recording. A recording may start after the
// first allocation: PyTorch's ring buffer of events overflowed, or recording was switched on late.
//
// The reconstruction starts from the final segments and undoes the events one by one. The result is
// exact with one exception: the end of a block in a large segment, if the block was freed during
// the recording. PyTorch splits a large block only if more than 1 MiB remains, so up to 1 MiB
// behind the requested bytes may belong to the block. These bytes count as part of the block in two
// cases: they are too few for a free block of a large pool, or they belong to a larger free range
// whose first use starts behind them.
#pragma once

#include <vector>

#include "plimsoll/allocator/config.h"
#include "plimsoll/events/segment.h"
#include "plimsoll/replay/events.h"

namespace plimsoll {

// Returns whether the events alone explain the final segments, so that the recording starts with an
// empty allocator. A recording without segments counts as complete.
[[nodiscard]] bool starts_from_nothing(const EventSpan& events,
                                       const std::vector<SegmentInfo>& final_segments);

// Returns the segments at the start. Throws ReplayError with the reason if they cannot be
// reconstructed.
[[nodiscard]] std::vector<SegmentInfo> reconstruct_start(
    const EventSpan& events, const std::vector<SegmentInfo>& final_segments,
    const AllocatorConfig& config);

}  // namespace plimsoll
