// Where a request of the elastic allocator could lie when no free block serves it: a row of free
// blocks, retired addresses and holes, at the least price.
//
// Free blocks have memory. Retired addresses whose piece is free where it serves get it back
// without a call of the driver. A hole costs mapping, and retired addresses whose piece is in use
// cost unmapping as well.
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
  std::vector<Address> revived;  // retired addresses whose pieces come back
  std::vector<Address> cleared;  // retired addresses to unmap: they are parts of the gaps
  std::vector<Gap> gaps;
  Bytes price = 0;  // of mapping the gaps, and of unmapping what is in them
};

// The pieces that may be taken away. One of these at a time holds a piece, which knows that.
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
  // It serves from now on; it was offered.
  FreePiece take(Piece* piece) { return {piece, std::exchange(piece->offered, nullptr)}; }
  [[nodiscard]] bool has(const Piece* piece) const {
    return piece != nullptr && piece->offered != nullptr;
  }
  // What was not taken.
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

// The place for `size` bytes that costs the least mapping and unmapping; none if no reservation has
// so many addresses in a row. Retired addresses come back if their piece is in `free`, and may be
// unmapped if they were retired at `idle_age` or before; none of them where nothing may be
// unmapped.
[[nodiscard]] std::optional<Place> find_place(const MappedSpace& space, Bytes size,
                                              const FreePieces& free = {},
                                              std::optional<std::uint64_t> idle_age = {});

// The place for `size` bytes at `address`, if it can be had, likewise; the quick way of a program
// that repeats itself.
[[nodiscard]] std::optional<Place> place_at(const MappedSpace& space, Address address, Bytes size,
                                            const FreePieces& free,
                                            std::optional<std::uint64_t> idle_age = {});

}  // namespace plimsoll
