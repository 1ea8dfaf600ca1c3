// A block: a piece of a segment, either in use by the program or free.
//
// The blocks of a segment form a list in address order without gaps:
// next->address == address + size. Two neighbours are merged if both are free and have memory. A
// pool with PoolOption::no_split need not merge them.
#pragma once

#include <cstdint>
#include <vector>

#include "plimsoll/base/units.h"

namespace plimsoll {

struct Pool;
class ExpandableSegment;
class MappedSpace;
struct Piece;
struct Arena;

struct Block {
  Address address = 0;
  Bytes size = 0;
  Bytes requested = 0;  // bytes that the program asked for when it last got this block
  StreamId stream = 0;  // the stream that may reuse the block without waiting
  Pool* pool = nullptr;
  Block* previous = nullptr;  // neighbours in the segment
  Block* next = nullptr;
  Block* left = nullptr;  // subtrees in the BestFitIndex that holds the block while it is free
  Block* right = nullptr;
  ExpandableSegment* expandable = nullptr;  // native: the block's expandable segment
  Arena* arena = nullptr;                   // elastic: the arena that the block belongs to
  MappedSpace* space = nullptr;
  // Elastic: if the block is retired, the piece of driver memory (piece.h) that is still mapped
  // here. The piece now serves another address.
  Piece* piece = nullptr;
  std::vector<StreamId> stream_uses;  // other streams that used the block since it was allocated
  // A count at the moment when the block was freed. Native: how often the pool had been searched
  // for a free block. Elastic: how many blocks had been freed in the arena.
  std::uint64_t age_base = 0;
  Bytes shared = 0;  // elastic: how much of a used block lies in shared memory
  // Elastic: this block's number among the blocks that may lie in shared memory. Blocks that the
  // program gets later have higher numbers. 0 if the block is always on the card.
  std::uint64_t lent = 0;
  // The number of the call stack in which the program requested this block; see
  // Allocator::set_context.
  std::uint32_t context = 0;
  // The number of the call stack in which the program made the request that created the segment.
  std::uint32_t segment_context = 0;
  // Streams that used the block inside a graph capture. The captured graph orders these uses, so no
  // event is recorded for them. In native, as in PyTorch, an entry can remain after the block is
  // freed, so a use by the block's next owner can be mistaken for one inside the capture.
  std::vector<StreamId> capture_uses;
  std::uint32_t order = 0;           // sorts free blocks of equal size; ties are sorted by address
  std::uint32_t segment_number = 0;  // native, uncached: SegmentInfo::number of the block's segment
  bool allocated = false;
  // False if the block has no memory. Also false if the block is retired: memory is still mapped at
  // the block's addresses, but now serves other addresses.
  bool mapped = true;
  bool retired = false;   // elastic: still mapped, but its memory now serves another address
  bool borrows = false;   // elastic: when freed, may have pieces to return (lending.h)
  bool exported = false;  // elastic: in use, and exported to other processes

  [[nodiscard]] bool is_split() const { return previous != nullptr || next != nullptr; }
  [[nodiscard]] bool is_active() const { return allocated || !stream_uses.empty(); }
};

}  // namespace plimsoll
