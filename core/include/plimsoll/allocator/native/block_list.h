// The allocator's blocks, each in a list with its neighbours. Only this file makes, splits, joins
// and drops blocks.
//
// Two neighbours are never both free, nor both unmapped: code that frees or unmaps a block joins it
// with its neighbours.
#pragma once

#include <cstdint>

#include "plimsoll/allocator/config.h"
#include "plimsoll/allocator/pool.h"
#include "plimsoll/base/object_pool.h"

namespace plimsoll {

class BlockList {
 public:
  explicit BlockList(TorchVersion version) : version_(version) {}

  // Makes the one block that covers a new segment or address space. It has no neighbours.
  Block* make_first(Address address, Bytes size, StreamId stream, Pool& pool) {
    Block* const block = make(address, size, stream, pool);
    block->segment_number = ++segments_;
    if (version_.prefers_first_made()) block->order = ++orders_;
    return block;
  }

  // Splits the first `size` bytes off a block that is in no pool, and returns them as a new block.
  // The old block keeps the rest. A segment's call stack is stored in the segment's first block. As
  // in PyTorch, the new block gets no call stack. So if the old block was the segment's first one,
  // the segment has no call stack any more.
  Block* split_front(Block* block, Bytes size) {
    Block* const front = make_piece(*block, block->address, size);
    block->address += size;
    block->size -= size;
    link(block->previous, front, block);
    return front;
  }
  // Splits a block after its first `size` bytes. The block keeps these bytes. Returns the rest as a
  // new block.
  Block* split_back(Block* block, Bytes size) {
    Block* const back = make_piece(*block, block->address + size, block->size - size);
    block->size = size;
    link(block, back, block->next);
    return back;
  }

  // Returns whether `block` may absorb this neighbour, which may be null. The neighbour must be
  // free, and either both or neither must be mapped.
  [[nodiscard]] static bool may_join(const Block* block, const Block* neighbour) {
    return neighbour != nullptr && !neighbour->is_active() && neighbour->mapped == block->mapped;
  }
  // Adds a neighbour to a block. The block is in no pool; the neighbour leaves its pool.
  void join(Block* block, Block* neighbour) {
    neighbour->pool->erase(neighbour);
    block->size += neighbour->size;
    if (neighbour == block->previous) {
      block->address = neighbour->address;
      block->segment_context = neighbour->segment_context;
      link(neighbour->previous, block, block->next);
    } else {
      link(block->previous, block, neighbour->next);
    }
    forget(neighbour);
  }
  void join_neighbours(Block* block) {
    if (may_join(block, block->previous)) join(block, block->previous);
    if (may_join(block, block->next)) join(block, block->next);
  }

  // Drops a block that is in no pool and that no neighbour refers to.
  void forget(Block* block) {
    block->pool = nullptr;
    objects_.recycle(block);
  }

  // Calls function(const Block*) for every block, in no order.
  template <typename Function>
  void for_each(Function function) const {
    objects_.for_each_slot([&](const Block* block) {
      if (block->pool != nullptr) function(block);
    });
  }

 private:
  Block* make(Address address, Bytes size, StreamId stream, Pool& pool) {
    Block* const block = objects_.make();
    block->address = address;
    block->size = size;
    block->stream = stream;
    block->pool = &pool;
    return block;
  }
  Block* make_piece(const Block& of, Address address, Bytes size) {
    Block* const block = make(address, size, of.stream, *of.pool);
    block->expandable = of.expandable;
    block->mapped = of.mapped;
    block->segment_number = of.segment_number;
    const bool is_newer = version_.prefers_first_made() && !version_.prefers_older_segment();
    block->order = is_newer ? ++orders_ : of.order;
    return block;
  }
  static void link(Block* previous, Block* block, Block* next) {
    block->previous = previous;
    block->next = next;
    if (previous != nullptr) previous->next = block;
    if (next != nullptr) next->previous = block;
  }

  ObjectPool<Block> objects_;
  TorchVersion version_;
  std::uint32_t orders_ = 0;  // the last `Block::order` that was given; best fit breaks ties by it
  std::uint32_t segments_ = 0;  // the last `Block::segment_number` that was given
};

}  // namespace plimsoll
