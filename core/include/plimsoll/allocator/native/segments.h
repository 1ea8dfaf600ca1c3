// Takes the allocator's segments from the driver and returns them: whole segments here, expandable
// ones through ExpandableMemory. Also chooses the segments to return when memory is short.
#pragma once

#include <vector>

#include "plimsoll/allocator/native/expandable_memory.h"

namespace plimsoll {

class Segments {
 public:
  // The objects that the arguments refer to must outlive this one.
  Segments(Driver& driver, const AllocatorConfig& config, BlockList& blocks, Books& books)
      : driver_(driver),
        config_(config),
        blocks_(blocks),
        books_(books),
        expandable_(driver, config, blocks, books) {}

  // Returns new memory for the request, as a block that is in no pool; null if there is too little.
  // Throws DriverError.
  Block* take(const NativeRequest& request);
  // Returns the bytes that `take` would request from the driver.
  [[nodiscard]] Bytes growth_for(const NativeRequest& request) const {
    return request.expandable ? expandable_.growth_for(request) : request.segment;
  }

  // Gives a whole segment, which is one free block, back to the driver. Throws DriverError if the
  // call fails; then nothing has changed.
  void release(Block* block);
  // Gives all free memory of the pool back to the driver, except free parts of split segments.
  void release_free(Pool& pool);
  // Gives free blocks of max_split_size or more, from the request's pool and stream, back to the
  // driver. If a block is at least as large as the request, gives back the smallest such block.
  // Otherwise gives back the largest blocks until their sum is as large as the request. Returns
  // false if even all blocks together are too small.
  bool release_oversize(const NativeRequest& request);

  // Returns the segments, none of them expandable, that have been free for longest in `large`, the
  // default large pool. The caller releases these segments to bring `reserved` down to `threshold`,
  // or as close to it as possible.
  [[nodiscard]] static std::vector<Block*> garbage(const Pool& large, Bytes reserved,
                                                   Bytes threshold);

  [[nodiscard]] ExpandableMemory& expandable() { return expandable_; }

 private:
  // Returns new memory for a whole segment, from the driver or the pool's source; 0 if there is too
  // little. Throws DriverError.
  [[nodiscard]] Address address_for(const NativeRequest& request);

  Driver& driver_;
  const AllocatorConfig& config_;
  BlockList& blocks_;
  Books& books_;
  ExpandableMemory expandable_;
};

}  // namespace plimsoll
