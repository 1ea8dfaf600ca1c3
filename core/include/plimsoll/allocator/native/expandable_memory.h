// Manages the allocator's expandable segments. It finds the address for a request, maps the pages
// that the request needs, and returns free pages to the driver.
//
// A stream has one expandable segment for each pool, or several if a segment reserves less address
// space than the device has memory. Unmapped blocks are in the pool's `unmapped`.
#pragma once

#include <memory>
#include <vector>

#include "plimsoll/allocator/native/block_list.h"
#include "plimsoll/allocator/native/books.h"
#include "plimsoll/allocator/native/expandable_segment.h"
#include "plimsoll/allocator/native/search.h"
#include "plimsoll/allocator/returned_handles.h"

namespace plimsoll {

class ExpandableMemory {
 public:
  // The objects that the arguments refer to must outlive this one.
  ExpandableMemory(Driver& driver, const AllocatorConfig& config, BlockList& blocks, Books& books)
      : driver_(driver), config_(config), blocks_(blocks), books_(books), returned_(driver) {}

  // Returns a block of at least the request's size, in no pool; null if the driver or the address
  // space has too little. Memory that was mapped before the failure stays mapped, as free memory.
  Block* take(const NativeRequest& request);
  // Returns the bytes that `take` would request from the driver.
  [[nodiscard]] Bytes growth_for(const NativeRequest& request) const;
  // Gives back to the driver the pages that lie wholly in a free block. If no page of the segment
  // has memory any more, drops the segment and its address space. Throws DriverError if a call
  // fails; then nothing has changed.
  void release(Block* block);
  // Asks the driver again to take back the memory that it refused to take back before.
  void offer_returned() { returned_.offer(); }

  // Reserves a new segment for requests like this one, and returns it as one unmapped block.
  // Returns null if the request would not fit.
  Block* reserve(const NativeRequest& request);
  // Maps memory to the first `size` bytes of an unmapped block, in whole pages. These pages become
  // a free block, which is joined with its free neighbours. If the device has too little memory,
  // returns false and changes nothing.
  bool map(Block* block, Bytes size);

 private:
  [[nodiscard]] Bytes page_size(const Pool& pool) const {
    return pool.small ? AllocatorConfig::kSmallSegment : config_.large_segment_size;
  }
  // Returns the size of a new segment's address space for the request.
  [[nodiscard]] Bytes size_for(const NativeRequest& request) const {
    return round_up(config_.expandable_size(driver_.memory_info().total), page_size(*request.pool));
  }
  [[nodiscard]] static Block* place_for(const NativeRequest& request);
  void unmap(Block* block);

  Driver& driver_;
  const AllocatorConfig& config_;
  BlockList& blocks_;
  Books& books_;
  ReturnedHandles returned_;
  std::vector<std::unique_ptr<ExpandableSegment>> segments_;
};

}  // namespace plimsoll
