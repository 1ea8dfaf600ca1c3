// Reconstructs the allocator's state at the start of a recording. A recording starts after the
// first allocation if PyTorch's ring buffer of events overflowed, or if recording was switched on
// late.
//
// The reconstruction starts from the final segments and undoes the events one by one. The result is
// exact with one exception: if a block was freed during the recording, its end is uncertain, unless
// its segment is small or expandable. PyTorch splits a large block only if more than 1 MiB remains,
// so up to 1 MiB behind the requested bytes may belong to the block. The free range behind these
// bytes decides:
//
// - If the range is at most 1 MiB long, or the block has at least max_split_size bytes, all of the
//   range belongs to the block.
// - Otherwise, the first request that the range serves during the block's life decides. If this
//   request gets an address in the range's first 1 MiB, the block ends at this address. If not, or
//   if there is no such request, the block ends where the range begins.
#pragma once

#include <vector>

#include "plimsoll/allocator/config.h"
#include "plimsoll/events/segment.h"
#include "plimsoll/replay/events.h"

namespace plimsoll {

// Returns whether the events alone explain the final segments. If they do, the allocator was empty
// at the start of the recording. Returns true for a recording without segments.
[[nodiscard]] bool starts_from_nothing(const EventSpan& events,
                                       const std::vector<SegmentInfo>& final_segments);

// Returns the segments at the start. Throws ReplayError with the reason if they cannot be
// reconstructed.
[[nodiscard]] std::vector<SegmentInfo> reconstruct_start(
    const EventSpan& events, const std::vector<SegmentInfo>& final_segments,
    const AllocatorConfig& config);

}  // namespace plimsoll
