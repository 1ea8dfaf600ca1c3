// Address space of which parts have memory: the blocks of one stream, in one pool, of one size
// class. It keeps books and decides where blocks lie; it calls no driver.
//
// Reservations, addresses that the driver set aside, are tiled by blocks. A block is lent, free, a
// hole (addresses without memory), or retired: its memory serves at another address already, but
// work queued earlier may still use this one. The memory is in pieces, a driver's handle each,
// which are mapped as a whole; a piece that lies wholly in one free block can be taken away.
//
// Two neighbours that are both free, or both holes, are always merged. Holes, pieces and
// reservations begin and end at granules.
#pragma once

#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "plimsoll/allocator/best_fit_index.h"
#include "plimsoll/allocator/block.h"
#include "plimsoll/base/object_pool.h"
#include "plimsoll/driver/driver.h"

namespace plimsoll {

struct Arena;

struct Piece {
  Bytes size = 0;
  Handle handle = 0;  // 0 while the piece is paused: its content is elsewhere
  Tier tier = Tier::dedicated;
};

// Which memory a space is made of.
enum class Tiers : std::uint8_t { dedicated, shared, both };

[[nodiscard]] constexpr bool may_use(Tiers tiers, Tier tier) {
  return tiers == Tiers::both || (tiers == Tiers::shared) == (tier == Tier::shared);
}

struct AddressRange {
  Address address = 0;
  Bytes size = 0;
  [[nodiscard]] Address end() const { return address + size; }
};

// Addresses without memory, and how many more there are on either side.
struct Gap {
  AddressRange range;
  Bytes room_below = 0;
  Bytes room_above = 0;
};

// A piece that nobody uses.
struct FreePiece {
  Address address = 0;
  Piece piece;
  Block* block = nullptr;  // the free block around it
};

// Where a request could lie, and the parts of it that have no memory yet.
struct Place {
  AddressRange extent;
  std::vector<Gap> gaps;
  Bytes missing = 0;  // of all gaps
};

// Addresses whose piece serves elsewhere.
struct Retired {
  Block* block = nullptr;
  std::uint64_t age = 0;  // once all work up to this age is done, they can be unmapped
};

class MappedSpace {
 public:
  explicit MappedSpace(Arena& arena, bool small, Tiers tiers = Tiers::dedicated)
      : arena_(arena), small_(small), tiers_(tiers) {}
  MappedSpace(const MappedSpace&) = delete;
  MappedSpace& operator=(const MappedSpace&) = delete;

  [[nodiscard]] bool small() const { return small_; }
  [[nodiscard]] Tiers tiers() const { return tiers_; }
  [[nodiscard]] Arena& arena() const { return arena_; }

  // The smallest free block of at least `size` bytes, cut to size; null if there is none. The hot
  // path: it allocates nothing.
  Block* take(Bytes size) {
    Block* const block = free_.take(size);
    return block == nullptr ? nullptr : cut(block, size);
  }
  // A block of exactly this range, if one free block holds it all.
  Block* take_at(Address address, Bytes size);
  // `age` says which frees came before; see `free_pieces`.
  void give_back(Block* block, std::uint64_t age);

  // Blocks are neither split nor merged from now on: each is one piece.
  void set_no_split(bool no_split) { no_split_ = no_split; }
  [[nodiscard]] bool no_split() const { return no_split_; }

  void add_reservation(Address address, Bytes size);
  // Where `size` bytes lack the least memory, and lowest of such places; none if no reservation has
  // so many addresses in a row.
  [[nodiscard]] std::optional<Place> place_for(Bytes size) const;
  // The lowest hole of at least `size` bytes.
  [[nodiscard]] std::optional<AddressRange> hole_for(Bytes size) const;
  // All pieces in free blocks that were freed at `age` or before.
  [[nodiscard]] std::vector<FreePiece> free_pieces(std::uint64_t age) const;

  // A piece was mapped into a hole: its memory is free.
  void add_piece(Address address, const Piece& piece, std::uint64_t age);
  // A free piece serves elsewhere, or is no more: its addresses are retired. Several free pieces of
  // one call to `free_pieces` are removed by ascending address, before anything else happens.
  void remove_piece(const FreePiece& piece, std::uint64_t age);
  // Physical memory without an owner is mapped in a hole until the driver takes it back.
  void retire(const AddressRange& range);
  [[nodiscard]] const std::map<Address, Retired>& retired() const { return retired_; }
  // Retired addresses were unmapped: they are a hole.
  void clear(Address address);

  // By address.
  [[nodiscard]] const std::map<Address, Piece>& pieces() const { return pieces_; }
  // Another handle of the same size was mapped in place of the piece at `address`.
  void replace_piece(Address address, const Piece& piece) { pieces_.at(address) = piece; }
  // How much of these bytes, which all have memory, lies in shared memory.
  [[nodiscard]] Bytes shared_bytes(Address address, Bytes size) const;
  // Calls function(Address, const Piece&) for each piece that has any of these bytes.
  template <typename Function>
  void for_each_piece(Address address, Bytes size, Function function) const {
    for (auto piece = std::prev(pieces_.upper_bound(address));
         piece != pieces_.end() && piece->first < address + size; ++piece) {
      function(piece->first, piece->second);
    }
  }
  [[nodiscard]] const std::vector<AddressRange>& reservations() const { return reservations_; }
  [[nodiscard]] const BestFitIndex& free() const { return free_; }
  // The block around an address of one of the reservations.
  [[nodiscard]] Block* block_at(Address address) const;
  // Calls function(const Block*) for every block, by address within each reservation.
  template <typename Function>
  void for_each_block(Function function) const {
    for (const Block* const first : firsts_) {
      for (const Block* block = first; block != nullptr; block = block->next) function(block);
    }
  }
  // Throws std::logic_error that names the first invariant that does not hold.
  void check_invariants() const;

 private:
  struct ByAddress {
    using is_transparent = void;
    bool operator()(const Block* a, const Block* b) const { return a->address < b->address; }
    bool operator()(Address a, const Block* b) const { return a < b->address; }
    bool operator()(const Block* a, Address b) const { return a->address < b; }
  };

  [[nodiscard]] Block* make(Address address, Bytes size);
  void drop(Block* block);
  // Makes a free block that is in no index the block of these bytes; what is left is free again.
  Block* cut(Block* block, Bytes size) {
    if (block->size == size || no_split_) return block;
    Block* const front = make(block->address, size);
    front->previous = block->previous;
    front->next = block;
    link(front);
    block->previous = front;
    block->address += size;
    block->size -= size;
    free_.insert(block);
    return front;
  }
  void link(Block* block);
  // Splits so that a block begins at `address`; returns that block. No index holds either part.
  Block* split_at(Block* block, Address address);
  // Both blocks are in no index, and neighbours; `second` is no more.
  void absorb_next(Block* block, Block* second);
  void make_hole(Block* block);
  // The block of exactly this range, which lies in one hole and is none any more.
  [[nodiscard]] Block* take_hole(const AddressRange& range);
  [[nodiscard]] std::optional<Place> place_from(const Block* first, Bytes size) const;
  [[nodiscard]] std::optional<Place> place_to(const Block* last, Bytes size) const;

  Arena& arena_;
  bool small_;
  Tiers tiers_;
  bool no_split_ = false;
  ObjectPool<Block> objects_;
  BestFitIndex free_;
  std::set<Block*, ByAddress> holes_;
  std::map<Address, Piece> pieces_;
  std::map<Address, Retired> retired_;
  std::vector<AddressRange> reservations_;
  std::vector<Block*> firsts_;  // of each reservation
};

}  // namespace plimsoll
