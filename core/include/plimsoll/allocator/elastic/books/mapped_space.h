// Address space of which parts have memory: the blocks and pieces of one stream, in one pool, of
// one size class. A space keeps books; it calls no driver.
//
// Blocks tile the addresses that the driver reserved, and each block is in one of four states.
// Pieces lie across blocks: one piece may hold several used and free blocks.
//
//   blocks   | used |      free      | used | retired |     hole     | free |
//   pieces   |     A     |     B     |  C   |   (D)   |              |  E   |
//
//   used     the program has it, or other streams still use what the program freed
//   free     it has memory, which is not used; B and E lie in free blocks as a whole, so they can
//            move, but A serves a used block too
//   retired  one piece's addresses: D serves elsewhere and is still mapped here, so it can return
//            without a call of the driver
//   hole     addresses without memory: nothing is mapped
//
//   hole    -> free     a piece is mapped here              add_piece
//   free   <-> used     a block is lent, or freed           take, free
//   free   <-> retired  a piece moves away, or returns      remove_piece, return_piece(s)
//   retired -> hole     the old mapping was unmapped        clear, give_way
//
// Memory comes back in three ways, and each has one verb: the program *frees* a block to its space;
// a piece *returns* to retired addresses of its own; the allocator *releases* memory to the driver.
#pragma once

#include <array>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plimsoll/allocator/best_fit_index.h"
#include "plimsoll/allocator/block.h"
#include "plimsoll/allocator/elastic/books/piece.h"
#include "plimsoll/allocator/elastic/books/repetition.h"
#include "plimsoll/base/flat_map.h"
#include "plimsoll/base/object_pool.h"
#include "plimsoll/driver/driver.h"

namespace plimsoll {

struct Arena;

// Which memory a space is made of.
enum class Tiers : std::uint8_t { dedicated, shared, both };

[[nodiscard]] constexpr bool may_use(Tiers tiers, Tier tier) {
  return tiers == Tiers::both || (tiers == Tiers::shared) == (tier == Tier::shared);
}

// A piece that nobody uses, and the free block around it.
struct FreePiece {
  Piece* piece = nullptr;
  Block* block = nullptr;
};

// A free piece returns to addresses where it is retired.
struct Return {
  FreePiece free;
  Address to = 0;
};

inline constexpr std::uint64_t kAnyAge = std::numeric_limits<std::uint64_t>::max();

enum class AddressState : std::uint8_t { used, free, retired, hole };

[[nodiscard]] inline AddressState state_of(const Block* block) {
  if (block->mapped) return block->is_active() ? AddressState::used : AddressState::free;
  return block->retired ? AddressState::retired : AddressState::hole;
}
[[nodiscard]] inline bool is_free(const Block* block) {
  return state_of(block) == AddressState::free;
}
[[nodiscard]] inline bool is_hole(const Block* block) {
  return state_of(block) == AddressState::hole;
}

class MappedSpace {
 public:
  struct ByAddress {
    using is_transparent = void;
    bool operator()(const Block* a, const Block* b) const { return a->address < b->address; }
    bool operator()(Address a, const Block* b) const { return a < b->address; }
    bool operator()(const Block* a, Address b) const { return a->address < b; }
  };
  using Holes = std::set<Block*, ByAddress>;

  enum class Kind : std::uint8_t {
    small,    // requests
    large,    // each where the program had it in the step before, if that is free
    planned,  // each where a plan says
  };
  MappedSpace(Arena& arena, Kind kind, Tiers tiers = Tiers::dedicated)
      : arena_(arena), kind_(kind), tiers_(tiers) {}
  ~MappedSpace();
  MappedSpace(const MappedSpace&) = delete;
  MappedSpace& operator=(const MappedSpace&) = delete;

  [[nodiscard]] bool small() const { return kind_ == Kind::small; }
  [[nodiscard]] bool planned() const { return kind_ == Kind::planned; }
  [[nodiscard]] Tiers tiers() const { return tiers_; }
  [[nodiscard]] Arena& arena() const { return arena_; }

  // A free block, cut to size: where the program had this request in the step before, else the
  // smallest of at least `size` bytes; null if there is none.
  Block* take(Bytes size) {
    if (!small()) {
      if (Block* const block = take_expected(size)) return block;
    }
    return take_best_fit(size);
  }
  // The same, but null as well where the memory that the request had in the step before may return.
  // The hot path: it allocates nothing.
  Block* take_at_once(Bytes size) {
    if (!small()) {
      if (Block* const block = take_expected(size)) return block;
      if (may_return(size)) return nullptr;
    }
    return take_best_fit(size);
  }

  // --- where requests shall lie, as the past says: large ones only
  // Whether the next request of the block's size may have the block; else it is to lie elsewhere.
  [[nodiscard]] bool is_where_expected(const Block* block) const {
    if (small()) return true;
    const Address address = repetition_.expect(block->size);
    return address == 0 || address == block->address;
  }
  // The block was lent.
  void note_lent(const Block* block) {
    if (!small()) repetition_.note(block->size, block->address);
  }
  // Where the program had a request of this size in the step before, and in the one before that; 0
  // where that is unknown.
  [[nodiscard]] std::array<Address, 2> expected(Bytes size) const {
    return no_split_ ? std::array<Address, 2>{} : repetition_.expect_both(size);
  }
  // The first of these, if sizes have gone on as in the step before for a while; else 0.
  [[nodiscard]] Address surely_expected(Bytes size) const {
    const Address address = no_split_ ? 0 : repetition_.expect(size);
    return repetition_.is_sure() ? address : 0;
  }
  // Where the program had at most so many requests after that one.
  [[nodiscard]] std::vector<AddressRange> coming(std::size_t most) const {
    std::vector<AddressRange> found;
    repetition_.for_each_coming(
        most, [&](Bytes size, Address address) { found.push_back({address, size}); });
    return found;
  }
  // Whether some of the memory that the request surely had in the step before is retired, and its
  // pieces still serve this space.
  [[nodiscard]] bool may_return(Bytes size) const;
  // Whether no block of the program, nor one whose free waits, has any of these addresses.
  [[nodiscard]] bool is_unused(Address address, Bytes size) const;

  // A block of exactly this range, if one free block holds it all.
  Block* take_at(Address address, Bytes size);
  // The block is free from now on. `age` says which frees came before; see `free_pieces`.
  void free(Block* block, std::uint64_t age);

  // Blocks are neither split nor merged from now on: each is one piece.
  void set_no_split(bool no_split) { no_split_ = no_split; }
  [[nodiscard]] bool no_split() const { return no_split_; }

  void add_reservation(Address address, Bytes size);
  // The lowest hole of at least `size` bytes.
  [[nodiscard]] std::optional<AddressRange> hole_for(Bytes size) const;
  // All pieces in free blocks that were freed at `age` or before.
  void add_free_pieces(std::uint64_t age, std::vector<FreePiece>& found) const;
  [[nodiscard]] std::vector<FreePiece> free_pieces(std::uint64_t age) const {
    std::vector<FreePiece> found;
    add_free_pieces(age, found);
    return found;
  }

  // A piece was mapped into a hole: its memory is free.
  void add_piece(Address address, std::unique_ptr<Piece> piece, std::uint64_t age);
  // A free piece will serve elsewhere, or be no more: its addresses are retired, at the age at
  // which they were freed. The caller removes several free pieces of one call to `free_pieces` by
  // ascending address, and does nothing else in between.
  [[nodiscard]] std::unique_ptr<Piece> remove_piece(const FreePiece& piece);
  // The piece is retired at `address`, and was removed from where it served; it is free there now.
  void return_piece(Address address, std::unique_ptr<Piece> piece, std::uint64_t age);
  // Free pieces of this space, by ascending address, return to where they are retired in it.
  // Pieces that lie side by side return in one step.
  void return_pieces(const std::vector<Return>& pieces, std::uint64_t age);
  // The pieces in a free block, and in or across `range`, that are away and can return to their
  // homes, by ascending address. A piece whose home is gone has its home where it is from now on.
  void add_pieces_away(Block* block, const AddressRange& range, std::vector<FreePiece>& found);
  // The piece's home is where it is from now on.
  void set_home(Piece& piece);
  // Whether any piece is away from home.
  [[nodiscard]] bool has_pieces_away() const { return pieces_away_ > 0; }
  // Physical memory without an owner is mapped in a hole until the driver takes it back.
  void retire(const AddressRange& range);
  [[nodiscard]] std::size_t retired_count() const { return retired_count_; }
  // The block of retired addresses.
  [[nodiscard]] const Block& retired_at(Address address) const {
    return *mappings_.find(address)->second.retired;
  }
  // Calls function(const Block&) for all that are, by address.
  template <typename Function>
  void for_each_retired(Function function) const {
    for (const auto& [address, mapping] : mappings_) {
      if (mapping.retired != nullptr) function(std::as_const(*mapping.retired));
    }
  }
  // Calls function(const Block&) for those that are among these addresses, in part or as a whole.
  template <typename Function>
  void for_each_retired(const AddressRange& range, Function function) const {
    if (retired_count_ == 0) return;
    auto next = mappings_.upper_bound(range.address);
    if (next != mappings_.begin()) --next;
    for (; next != mappings_.end() && next->first < range.end(); ++next) {
      const Block* const retired = next->second.retired;
      if (retired != nullptr && range.address < next->first + retired->size) function(*retired);
    }
  }
  // Retired addresses were unmapped: they are a hole.
  void clear(Address address);
  // The same, because another piece will be mapped there.
  void give_way(Address address);
  // How often the address gave way.
  [[nodiscard]] Bytes times_given_way(Address address) const {
    const auto found = given_way_.find(address);
    return found == given_way_.end() ? 0 : found->second;
  }

  // The piece that serves from there on; null if none does.
  [[nodiscard]] const Piece* piece_at(Address address) const {
    const auto found = mappings_.find(address);
    return found == mappings_.end() ? nullptr : found->second.serves.get();
  }
  // Calls function(Piece&) for each, by address.
  template <typename Function>
  void for_each_piece(Function function) const {
    for (const auto& [address, mapping] : mappings_) {
      if (mapping.serves) function(*mapping.serves);
    }
  }
  // How much of these bytes, which all have memory, lies in shared memory.
  [[nodiscard]] Bytes shared_bytes(Address address, Bytes size) const;
  // Calls function(Piece&) for each piece that has any of these bytes, which all have memory, by
  // address.
  template <typename Function>
  void for_each_piece(Address address, Bytes size, Function function) const {
    for (auto next = std::prev(mappings_.upper_bound(address));
         next != mappings_.end() && next->first < address + size; ++next) {
      function(*next->second.serves);
    }
  }
  [[nodiscard]] const std::vector<AddressRange>& reservations() const { return reservations_; }
  [[nodiscard]] const BestFitIndex& free_blocks() const { return free_; }
  [[nodiscard]] const Holes& holes() const { return holes_; }
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
  static constexpr std::size_t kMostGivenWay = 4096;  // addresses
  static constexpr std::size_t kMostLooked = 64;      // blocks, for one around an address

  // What is mapped at an address: the piece that serves there, or the retired block of one that
  // serves elsewhere.
  struct Mapping {  // (serves == nullptr) != (retired == nullptr)
    std::unique_ptr<Piece> serves = {};
    Block* retired = nullptr;
  };
  using Mappings = FlatMap<Mapping>;

  [[nodiscard]] Block* make(Address address, Bytes size);
  // Null if the step before does not say, or there is no such free block.
  [[nodiscard]] Block* take_expected(Bytes size);
  Block* take_best_fit(Bytes size) {
    Block* const block = free_.take(size);
    return block == nullptr ? nullptr : cut(block, size);
  }
  [[nodiscard]] Block* take_from(Block* block, Address address, Bytes size);
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
    know(front);
    know(block);
    return front;
  }
  void link(Block* block);
  [[nodiscard]] Block* last_retired(Address address) const;
  // Splits so that a block begins at `address`; returns that block. No index holds either part.
  Block* split_at(Block* block, Address address);
  // Both blocks are in no index, and neighbours; `second` is no more.
  void absorb_next(Block* block, Block* second);
  void make_hole(Block* block);
  // The block of just these bytes, which one free block holds; no index has it any more.
  Block* take_out(Block* first, const AddressRange& range);
  // The piece that serves at `from` serves at `to`, where it was retired, and is retired where it
  // served, in the block `left`. Returns the block that it returned to.
  Block* exchange(Mappings::iterator from, Mappings::iterator to, Block* left);
  void hold(Address address, std::unique_ptr<Piece> piece);
  void retire(Block* block);
  // The block of exactly this range, which lies in one hole and is none any more.
  [[nodiscard]] Block* take_hole(const AddressRange& range);

  // In a planned space each block is known by its address.
  void know(Block* block) {
    if (planned()) by_address_[block->address] = block;
  }

  // `check_invariants` checks the invariants of each field.
  Arena& arena_;
  Kind kind_;
  Tiers tiers_;
  bool no_split_ = false;  // if it is set, each block is one piece
  ObjectPool<Block> objects_;
  // The blocks of a reservation make it up, without gaps. Two free neighbours, or two holes, are
  // merged (free ones not under no_split_). Holes, retired blocks and pieces begin and end at
  // granules; bytes in used and free blocks == sum of piece->size.
  std::vector<AddressRange> reservations_;
  std::vector<Block*> firsts_;  // of each reservation
  BestFitIndex free_;           // exactly the free blocks
  Holes holes_;                 // exactly the holes
  // By address, and without overlaps. Where a piece serves, piece->space == this and
  // piece->address == the key; a retired block is one piece's addresses.
  Mappings mappings_;
  std::size_t pieces_away_ = 0;                   // pieces with home != address
  std::size_t retired_count_ = 0;                 // retired blocks
  std::unordered_map<Address, Bytes> given_way_;  // how often, by address
  Repetition repetition_;                         // of large requests
  FlatMap<Block*> by_address_;                    // in a planned space: all blocks
};

}  // namespace plimsoll
