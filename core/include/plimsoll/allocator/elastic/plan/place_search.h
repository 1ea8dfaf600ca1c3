// Finds where a request could lie when no free block serves it: the cheapest row of free blocks,
// retired addresses and holes (mapped_space.h explains these states).
//
//   free block    It has memory.                                  costs nothing
//   retired       Its piece is free, so the piece can return.     costs nothing
//   hole          A piece must be mapped into it.                 1 per byte
//   retired       Its piece is used. The address must be          7 per byte, and 6 more for each
//                 unmapped, and then filled like a hole.          earlier time it was unmapped
//   used          It ends the row.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "plimsoll/allocator/elastic/books/mapped_space.h"

namespace plimsoll {

// Addresses that are to get memory. `room_below` and `room_above` say how many bytes directly below
// and directly above the range have no memory either.
struct Gap {
  AddressRange range;
  Bytes room_below = 0;
  Bytes room_above = 0;
};

// A place where a request could lie, and the addresses that must get memory first.
struct Place {
  AddressRange extent;
  std::vector<Address> returned;  // addresses of the retired blocks whose pieces return
  std::vector<Address> cleared;   // addresses of the retired blocks to unmap; each overlaps a gap
  std::vector<Gap> gaps;
  Bytes price = 0;  // the price of mapping the gaps and unmapping `cleared`
};

// A set of free pieces that may move. A piece is marked (`offered`) while a FreePieces holds it.
// Only one FreePieces at a time may hold a piece.
class FreePieces {
 public:
  FreePieces() = default;
  FreePieces(const FreePieces&) = delete;
  FreePieces& operator=(const FreePieces&) = delete;
  ~FreePieces() {
    for (Piece* const piece : pieces_) piece->offered = nullptr;
  }

  void add(const FreePiece& free) {
    free.piece->offered = free.block;
    pieces_.push_back(free.piece);
  }
  // Takes a piece out of the set. `has` must have returned true for it.
  FreePiece take(Piece* piece) { return {piece, std::exchange(piece->offered, nullptr)}; }
  [[nodiscard]] bool has(const Piece* piece) const {
    return piece != nullptr && piece->offered != nullptr;
  }
  // Returns the pieces that were not taken.
  [[nodiscard]] std::vector<FreePiece> left() const {
    std::vector<FreePiece> left;
    for (Piece* const piece : pieces_) {
      if (has(piece)) left.push_back({piece, piece->offered});
    }
    return left;
  }

 private:
  std::vector<Piece*> pieces_;
};

// Returns the cheapest place for `size` bytes; nothing if no reservation has that many suitable
// addresses in a row. Only pieces in `free` may return to their retired addresses. Only addresses
// that were retired at `idle_age` or before may be unmapped. Without an `idle_age`, no addresses
// may be unmapped.
[[nodiscard]] std::optional<Place> find_place(const MappedSpace& space, Bytes size,
                                              const FreePieces& free = {},
                                              std::optional<std::uint64_t> idle_age = {});

// Returns the place at `address`; nothing if the request cannot lie there. This is the fast path
// for a program that repeats its steps.
[[nodiscard]] std::optional<Place> place_at(const MappedSpace& space, Address address, Bytes size,
                                            const FreePieces& free,
                                            std::optional<std::uint64_t> idle_age = {});

}  // namespace plimsoll
