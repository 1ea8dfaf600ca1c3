// A piece of the driver's memory: one handle, mapped as a whole, with one owner. The memory goes
// back to the driver with the piece.
//
// A piece serves at one address. Where it served before, it may still be mapped; these addresses
// are retired (see MappedSpace), and know the piece, so that it can come back to them. It knows
// them as well, for nothing may come back to them once the memory is gone:
//   block->piece == this  <=>  block, which is retired, is in `old_mappings`.
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
  ~Piece() { give_back(); }

  Bytes size;
  Tier tier;
  Handle handle;  // 0 while the piece is paused: its content is elsewhere
  ReturnedHandles* returned;
  MappedSpace* space = nullptr;  // where it serves, or served last
  Address address = 0;
  Address home = 0;  // where it belongs while it is free, in the same space
  std::vector<Block*> old_mappings;
  Block* offered = nullptr;  // the free block around it, while a FreePieces holds it

  [[nodiscard]] Address end() const { return address + size; }
  [[nodiscard]] bool has_memory() const { return handle != 0; }

  void left(Block& retired) {
    retired.piece = this;
    old_mappings.push_back(&retired);
  }
  // It is back there, or is mapped there no more.
  void forget(Block& retired) {
    std::erase(old_mappings, &retired);
    retired.piece = nullptr;
  }
  // It is back at `from`, and has left `to`.
  void exchange(Block& from, Block& to) {
    std::ranges::replace(old_mappings, &from, &to);
    from.piece = nullptr;
    to.piece = this;
  }
  // Each has the other's memory from now on; nothing comes back to where this one's was mapped.
  void exchange_memory(Piece& other) {
    forget_old_mappings();
    std::swap(handle, other.handle);
    std::swap(tier, other.tier);
  }
  void forget_old_mappings() {
    for (Block* const old : std::exchange(old_mappings, {})) old->piece = nullptr;
  }
  // Gives the memory to the driver. Nothing comes back to where it was mapped.
  void give_back() {
    forget_old_mappings();
    if (handle != 0) returned->give_back(std::exchange(handle, 0));
  }
};

}  // namespace plimsoll
