// Where a request could lie when no free block serves it: a row of free blocks, retired addresses
// and holes, at the least price.
//
//   free block    has memory                                      costs nothing
//   retired       its piece is free, so it can return             costs nothing
//   hole          a piece is mapped into it                       1 a byte
//   retired       its piece is used: unmapped, then as a hole     7 a byte, 6 more each time
//   used          ends the row
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "plimsoll/allocator/elastic/books/mapped_space.h"

namespace plimsoll {

// Addresses without memory, and how many more there are on either side.
struct Gap {
  AddressRange range;
  Bytes room_below = 0;
  Bytes room_above = 0;
};

// Where a request could lie, and what has to be done before.
struct Place {
  AddressRange extent;
  std::vector<Address> returned;  // retired addresses to which their pieces return
  std::vector<Address> cleared;   // retired addresses to unmap: they are parts of the gaps
  std::vector<Gap> gaps;
  Bytes price = 0;  // of mapping the gaps, and of unmapping what is in them
};

// The free pieces that may move. A piece is marked while a FreePieces holds it, and only one does.
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
  // The piece is planned for; `has` said true before.
  FreePiece take(Piece* piece) { return {piece, std::exchange(piece->offered, nullptr)}; }
  [[nodiscard]] bool has(const Piece* piece) const {
    return piece != nullptr && piece->offered != nullptr;
  }
  // The pieces that were not taken.
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

// The place for `size` bytes that costs the least; none if no reservation has so many addresses in
// a row. A piece may return if it is in `free`; addresses may be unmapped if they were retired at
// `idle_age` or before, and without an `idle_age` none may.
[[nodiscard]] std::optional<Place> find_place(const MappedSpace& space, Bytes size,
                                              const FreePieces& free = {},
                                              std::optional<std::uint64_t> idle_age = {});

// The same for the place at `address`: the quick way of a program that repeats itself.
[[nodiscard]] std::optional<Place> place_at(const MappedSpace& space, Address address, Bytes size,
                                            const FreePieces& free,
                                            std::optional<std::uint64_t> idle_age = {});

}  // namespace plimsoll
