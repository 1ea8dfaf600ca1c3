// How the allocator's segments come from the driver and go back to it: whole ones here, those that
// grow by way of ExpandableMemory. Which of them go back when memory is short, is said here too.
#pragma once

#include <vector>

#include "plimsoll/allocator/native/expandable_memory.h"

namespace plimsoll {

class Segments {
 public:
  // What these refer to outlives this.
  Segments(Driver& driver, const AllocatorConfig& config, BlockList& blocks, Books& books)
      : driver_(driver),
        config_(config),
        blocks_(blocks),
        books_(books),
        expandable_(driver, config, blocks, books) {}

  // New memory for the request, as a block that is in no pool; null if there is too little. Throws
  // DriverError.
  Block* take(const NativeRequest& request);
  // What the driver would have to give for `take`.
  [[nodiscard]] Bytes growth_for(const NativeRequest& request) const {
    return request.expandable ? expandable_.growth_for(request) : request.segment;
  }

  // Gives back a whole segment, which is one free block. Throws DriverError; then nothing has
  // changed.
  void release(Block* block);
  // Gives back all that is free in the pool, but for pieces of whole segments.
  void release_free(Pool& pool);
  // Gives back blocks of max_split_size or more until the request would fit; false if they do not
  // suffice.
  bool release_oversize(const NativeRequest& request);

  // The whole segments of the default large pool that have been free for longest: `release` of them
  // brings what is reserved down to `threshold`, as far as it can.
  [[nodiscard]] static std::vector<Block*> garbage(const Pool& large, Bytes reserved,
                                                   Bytes threshold);

  [[nodiscard]] ExpandableMemory& expandable() { return expandable_; }

 private:
  Driver& driver_;
  const AllocatorConfig& config_;
  BlockList& blocks_;
  Books& books_;
  ExpandableMemory expandable_;
};

}  // namespace plimsoll
