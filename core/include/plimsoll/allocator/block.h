// A block: a piece of a segment, either in use by the program or free.
//
// The blocks of a segment form a list in address order without gaps:
// next->address == address + size, and two free neighbours of the same kind are always merged.
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
  Bytes requested = 0;  // the size of the program's last request that got this block
  StreamId stream = 0;  // the stream that may reuse the block without waiting
  Pool* pool = nullptr;
  Block* previous = nullptr;  // neighbours in the segment
  Block* next = nullptr;
  Block* left = nullptr;  // subtrees in the BestFitIndex that holds the block while it is free
  Block* right = nullptr;
  ExpandableSegment* expandable = nullptr;  // native: the block's expandable segment
  Arena* arena = nullptr;                   // elastic: where it lies
  MappedSpace* space = nullptr;
  Piece* piece = nullptr;  // elastic: if retired, the piece mapped there, which may return
  std::vector<StreamId> stream_uses;  // other streams that used the block since it was allocated
  std::uint64_t age_base = 0;         // the pool's search count when the block became free
  Bytes shared = 0;                   // elastic: bytes of a used block in shared memory
  std::uint64_t lent = 0;             // elastic: numbers the blocks in spaces with shared memory
  std::uint32_t context = 0;          // history's number for the stack of the last request
  std::uint32_t segment_context = 0;  // the call stack of the request that made the segment
  // Streams that used the block during a capture, in order with the capture's own work. In native
  // these entries stay as long as this record does, as in PyTorch, which can therefore mistake a
  // later use for one of the capture.
  std::vector<StreamId> capture_uses;
  std::uint32_t order = 0;  // sorts free blocks of equal size, before their addresses do
  bool allocated = false;
  bool mapped = true;     // false: address space of an expandable segment without memory
  bool retired = false;   // elastic: its memory is in use elsewhere
  bool borrows = false;   // elastic: some pieces return to their old place once it is free
  bool exported = false;  // elastic: other processes may map the memory of a used block

  [[nodiscard]] bool is_split() const { return previous != nullptr || next != nullptr; }
  [[nodiscard]] bool is_active() const { return allocated || !stream_uses.empty(); }
};

}  // namespace plimsoll
