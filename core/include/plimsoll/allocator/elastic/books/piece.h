// A piece: memory of the driver with one handle. It is mapped as a whole and has one owner.
//
// A piece serves at one address. It may still be mapped at addresses where it served before. Those
// addresses are retired (mapped_space.h). The piece can return to them without a driver call. A
// piece that is destroyed releases its memory to the driver.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "plimsoll/allocator/block.h"
#include "plimsoll/allocator/returned_handles.h"
#include "plimsoll/driver/driver.h"

namespace plimsoll {

class MappedSpace;

struct AddressRange {
  Address address = 0;
  Bytes size = 0;
  [[nodiscard]] Address end() const { return address + size; }
};

struct Piece {
  Piece(Bytes size_, Tier tier_, Handle handle_, ReturnedHandles& to)
      : size(size_), tier(tier_), handle(handle_), returned(&to) {}
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;
  ~Piece() { release(); }

  Bytes size;
  Tier tier;
  Handle handle;  // 0 while the piece is off the card
  ReturnedHandles* returned;
  MappedSpace* space = nullptr;  // the space that it serves, or served last
  Address address = 0;
  std::uint64_t number = 0;  // pieces that began to serve later have higher numbers
  Address home = 0;  // where it was mapped first in this space; it returns there when it is free
  // The retired blocks where this piece is still mapped: all blocks whose `piece` is this piece.
  std::vector<Block*> old_mappings;
  // The free block around this piece, while the piece is in a FreePieces (place_search.h).
  Block* offered = nullptr;

  [[nodiscard]] Address end() const { return address + size; }
  [[nodiscard]] bool has_memory() const { return handle != 0; }

  // Notes that the piece serves elsewhere from now on and is still mapped in `retired`.
  void left(Block& retired) {
    retired.piece = this;
    old_mappings.push_back(&retired);
  }
  // Notes that the piece returned to `retired`, or is no longer mapped there.
  void forget(Block& retired) {
    std::erase(old_mappings, &retired);
    retired.piece = nullptr;
  }
  // Notes that the piece left the block `to` and returned to the retired block `from`. `to` is
  // retired now, and replaces `from` among the old mappings.
  void exchange(Block& from, Block& to) {
    std::ranges::replace(old_mappings, &from, &to);
    from.piece = nullptr;
    to.piece = this;
  }
  // Swaps the memory of two pieces. This piece also forgets its old mappings, because they map the
  // memory that the other piece gets.
  void exchange_memory(Piece& other) {
    forget_old_mappings();
    std::swap(handle, other.handle);
    std::swap(tier, other.tier);
  }
  void forget_old_mappings() {
    for (Block* const old : std::exchange(old_mappings, {})) old->piece = nullptr;
  }
  void release() {
    forget_old_mappings();
    if (handle != 0) returned->give_back(std::exchange(handle, 0));
  }
};

}  // namespace plimsoll
