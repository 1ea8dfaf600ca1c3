// The allocator's expandable segments: where in them a request finds a place, how they grow by
// mapping pages there, and how free pages go back to the driver.
//
// A stream has one for each pool, or several, where less address space is reserved than the device
// has memory. Of its blocks those that are not mapped stand in the pool's `unmapped`.
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
  // What these refer to outlives this.
  ExpandableMemory(Driver& driver, const AllocatorConfig& config, BlockList& blocks, Books& books)
      : driver_(driver), config_(config), blocks_(blocks), books_(books), returned_(driver) {}

  // A block of at least the request's size, which is in no pool; null if neither the driver nor the
  // address space has as much. What was mapped until then stays, as free memory.
  Block* take(const NativeRequest& request);
  // What the driver would have to give for `take`.
  [[nodiscard]] Bytes growth_for(const NativeRequest& request) const;
  // Gives back the pages that lie wholly in a free block, and the address space once nothing else
  // is in it. Throws DriverError; then nothing has changed.
  void release(Block* block);
  // Memory that the driver refused to take back so far.
  void offer_returned() { returned_.offer(); }

  // A new segment for such requests: its one block is unmapped. Null if they would not fit.
  Block* reserve(const NativeRequest& request);
  // Gives an unmapped block memory, from its start on, for `size` bytes; it is free then, and
  // joined with its free neighbours. False, and nothing has changed, if the device has too little.
  bool map(Block* block, Bytes size);

 private:
  [[nodiscard]] Bytes page_size(const Pool& pool) const {
    return pool.small ? AllocatorConfig::kSmallSegment : config_.large_segment_size;
  }
  // What a new segment for the request would have.
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
