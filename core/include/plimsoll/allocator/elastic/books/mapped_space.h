// A space has reserved addresses for the requests of one stream, one pool and one size class, and
// records what lies there: blocks, which the program gets, and pieces, which are memory of the
// driver (piece.h). Some addresses have no memory. A space never calls the driver.
//
// Blocks tile the addresses that the driver reserved, and each block is in one of four states. A
// piece may span several used and free blocks.
//
//   blocks   | used |      free      | used | retired |     hole     | free |
//   pieces   |     A     |     B     |  C   |   (D)   |              |  E   |
//
//   used     the program has the block, or freed it while other streams still use it.
//   free     The memory is not used. B and E can move, because they lie in free blocks as a whole.
//   retired  D serves elsewhere and is still mapped here. It can return without a driver call.
//   hole     No memory is mapped here.
//
//   hole    -> free     a piece is mapped here              add_piece
//   free   <-> used     a block is lent, or freed           take, free
//   free   <-> retired  a piece moves away, or returns      remove_piece, return_piece(s)
//   retired -> hole     the old mapping was unmapped        clear, give_way
//
// Memory comes back in three ways, and each has one verb. The program *frees* a block to its space.
// A piece *returns* to retired addresses of its own. The allocator *releases* memory to the driver.
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

// The tiers from which a space takes memory.
enum class Tiers : std::uint8_t { dedicated, shared, both };

[[nodiscard]] constexpr bool may_use(Tiers tiers, Tier tier) {
  return tiers == Tiers::both || (tiers == Tiers::shared) == (tier == Tier::shared);
}

// A free piece and the free block that contains it.
struct FreePiece {
  Piece* piece = nullptr;
  Block* block = nullptr;
};

// A free piece that is to return to retired addresses, where it is still mapped.
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
    small,    // places small requests by best fit
    large,    // places each request where the previous step had it, if that is free
    planned,  // places each request where a plan says
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

  // Returns a free block, cut to size. Prefers the place that the request had in the previous step,
  // then takes the smallest block of at least `size` bytes. Returns null if there is none.
  Block* take(Bytes size) {
    if (!small()) {
      if (Block* const block = take_expected(size)) return block;
    }
    return take_best_fit(size);
  }
  // Does what `take` does, with one exception. If pieces can return to the place that the request
  // had in the previous step, returns null. The caller then moves the pieces there (plan_return).
  // This function is on the hot path, and allocates nothing on the heap.
  Block* take_at_once(Bytes size) {
    if (!small()) {
      if (Block* const block = take_expected(size)) return block;
      if (may_return(size)) return nullptr;
    }
    return take_best_fit(size);
  }

  // --- where large requests should lie, learned from the order of past requests
  // Returns false if the next request of the block's size is expected at another address.
  [[nodiscard]] bool is_where_expected(const Block* block) const {
    if (small()) return true;
    const Address address = repetition_.expect(block->size);
    return address == 0 || address == block->address;
  }
  // Remembers where a large block was lent.
  void note_lent(const Block* block) {
    if (!small()) repetition_.note(block->size, block->address);
  }
  // Returns where the program had a request of this size in the previous step, and in the step
  // before it; 0 where that is unknown.
  [[nodiscard]] std::array<Address, 2> expected(Bytes size) const {
    return no_split_ ? std::array<Address, 2>{} : repetition_.expect_both(size);
  }
  // Returns the address that the request had in the previous step, if the last requests surely
  // repeat that step (Repetition::is_sure); else 0.
  [[nodiscard]] Address surely_expected(Bytes size) const {
    const Address address = no_split_ ? 0 : repetition_.expect(size);
    return repetition_.is_sure() ? address : 0;
  }
  // Returns the address ranges that the requests after the present one had in the previous step.
  // Returns at most `most` ranges, and none if the program is not repeating a step.
  [[nodiscard]] std::vector<AddressRange> coming(std::size_t most) const {
    std::vector<AddressRange> found;
    repetition_.for_each_coming(
        most, [&](Bytes size, Address address) { found.push_back({address, size}); });
    return found;
  }
  // Returns whether memory might return to the place `surely_expected(size)`. At least one retired
  // block must overlap the place. The piece of each such block must exist and serve in this space.
  // This function does not check whether these pieces are free. Returns false if no place is surely
  // expected.
  [[nodiscard]] bool may_return(Bytes size) const;
  // Returns true if no block in use overlaps these addresses. A block that the program has freed
  // while other streams still use it counts as in use.
  [[nodiscard]] bool is_unused(Address address, Bytes size) const;

  // Returns a block of exactly this range; null if no free block contains it.
  Block* take_at(Address address, Bytes size);
  // Makes the block free. `age` orders the frees; see `free_pieces`.
  void free(Block* block, std::uint64_t age);

  // If `no_split` is true, blocks are not split or merged from now on, and each block is one piece.
  void set_no_split(bool no_split) { no_split_ = no_split; }
  [[nodiscard]] bool no_split() const { return no_split_; }

  void add_reservation(Address address, Bytes size);
  // Returns the lowest hole of at least `size` bytes.
  [[nodiscard]] std::optional<AddressRange> hole_for(Bytes size) const;
  // Adds to `found` all pieces in free blocks that were freed at `age` or before.
  void add_free_pieces(std::uint64_t age, std::vector<FreePiece>& found) const;
  [[nodiscard]] std::vector<FreePiece> free_pieces(std::uint64_t age) const {
    std::vector<FreePiece> found;
    add_free_pieces(age, found);
    return found;
  }

  // Adds a piece that was mapped into a hole. Its memory is free.
  void add_piece(Address address, std::unique_ptr<Piece> piece, std::uint64_t age);
  // Removes a free piece, which will serve elsewhere or be destroyed. Its addresses are retired and
  // keep the age at which they were freed. To remove several pieces that one call of `free_pieces`
  // returned, go by ascending address and call nothing else in between.
  [[nodiscard]] std::unique_ptr<Piece> remove_piece(const FreePiece& piece);
  // Lets a removed piece serve at the retired `address`, where it is still mapped. The memory is
  // then free.
  void return_piece(Address address, std::unique_ptr<Piece> piece, std::uint64_t age);
  // Moves free pieces of this space back to retired addresses in this space, as each `Return` says.
  // `pieces` is sorted by the present address. Adjacent pieces move together.
  void return_pieces(const std::vector<Return>& pieces, std::uint64_t age);
  // Looks for pieces that are away from home, lie in the free `block` and overlap `range`. If such
  // a piece is still mapped at its home, adds the piece to `found`, by ascending address. If not,
  // makes the piece's present address its home.
  void add_pieces_away(Block* block, const AddressRange& range, std::vector<FreePiece>& found);
  // Makes the piece's present address its home.
  void set_home(Piece& piece);
  // Returns whether any piece is away from home.
  [[nodiscard]] bool has_pieces_away() const { return pieces_away_ > 0; }
  // Retires a range of a hole where the driver refused to unmap memory. No piece owns that memory.
  void retire(const AddressRange& range);
  [[nodiscard]] std::size_t retired_count() const { return retired_count_; }
  // Returns the retired block at `address`.
  [[nodiscard]] const Block& retired_at(Address address) const {
    return *mappings_.find(address)->second.retired;
  }
  // Calls function(const Block&) for all retired blocks, in the order of their addresses.
  template <typename Function>
  void for_each_retired(Function function) const {
    for (const auto& [address, mapping] : mappings_) {
      if (mapping.retired != nullptr) function(std::as_const(*mapping.retired));
    }
  }
  // Calls function(const Block&) for the retired blocks that overlap the range.
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
  // Turns the retired block at `address` into a hole. The caller has unmapped its addresses.
  void clear(Address address);
  // Does what `clear` does, and counts the call for this address. Call it instead of `clear` when
  // another piece needs the addresses.
  void give_way(Address address);
  // Returns how often `give_way` was called for the address.
  [[nodiscard]] Bytes times_given_way(Address address) const {
    const auto found = given_way_.find(address);
    return found == given_way_.end() ? 0 : found->second;
  }

  // Returns the piece that serves from `address` on; null if none does.
  [[nodiscard]] const Piece* piece_at(Address address) const {
    const auto found = mappings_.find(address);
    return found == mappings_.end() ? nullptr : found->second.serves.get();
  }
  // Calls function(Piece&) for each piece that serves in this space, in the order of addresses.
  template <typename Function>
  void for_each_piece(Function function) const {
    for (const auto& [address, mapping] : mappings_) {
      if (mapping.serves) function(*mapping.serves);
    }
  }
  // Returns how much of the range lies in shared memory. The whole range must have memory.
  [[nodiscard]] Bytes shared_bytes(Address address, Bytes size) const;
  // Calls function(Piece&) for each piece that overlaps the range, in the order of addresses. The
  // whole range must have memory.
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
  // Returns the block that contains `address`; null if no reservation does.
  [[nodiscard]] Block* block_at(Address address) const;
  // Calls function(const Block*) for every block: one reservation after another, and by ascending
  // address within a reservation.
  template <typename Function>
  void for_each_block(Function function) const {
    for (const Block* const first : firsts_) {
      for (const Block* block = first; block != nullptr; block = block->next) function(block);
    }
  }
  // Throws std::logic_error if an invariant does not hold. The message names the invariant.
  void check_invariants() const;

 private:
  static constexpr std::size_t kMostGivenWay = 4096;  // the most addresses that `given_way_` holds
  static constexpr std::size_t kMostLooked = 64;      // blocks that one search may look at

  // Names what is mapped at an address: a piece that serves there, or the block of a retired
  // address.
  struct Mapping {  // (serves == nullptr) != (retired == nullptr)
    std::unique_ptr<Piece> serves = {};
    Block* retired = nullptr;
  };
  using Mappings = FlatMap<Mapping>;

  [[nodiscard]] Block* make(Address address, Bytes size);
  // Returns a free block, cut to size, at the place that the request had in the previous step. If
  // that place is not free, tries the place that it had in the step before. Returns null if neither
  // place is known and free.
  [[nodiscard]] Block* take_expected(Bytes size);
  Block* take_best_fit(Bytes size) {
    Block* const block = free_.take(size);
    return block == nullptr ? nullptr : cut(block, size);
  }
  [[nodiscard]] Block* take_from(Block* block, Address address, Bytes size);
  void drop(Block* block);
  // Cuts a block of `size` bytes off the front of a free block that is not in `free_` now, and
  // returns it. The rest goes back to `free_`. If `no_split_` is set, returns the whole block.
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
  // Splits the block at `address`, and returns the back part. The block must not be in `free_` or
  // `holes_`, and neither part is put there.
  Block* split_at(Block* block, Address address);
  // Merges `second`, the next neighbour, into `block`. `second` must not be in `free_` or `holes_`,
  // and `block` must not be in `free_`, because its size changes and `free_` sorts by size.
  void absorb_next(Block* block, Block* second);
  void make_hole(Block* block);
  // Takes exactly this range out of the free block that contains it. The search for that block
  // begins at the block `first`. The returned block is not in `free_`.
  Block* take_out(Block* first, const AddressRange& range);
  // Lets a piece serve at `to` again. Before the call, the piece serves at `from`, in the block
  // `left`, and is still mapped at the retired address `to`. Retires `left`, and returns the block
  // at `to`.
  Block* exchange(Mappings::iterator from, Mappings::iterator to, Block* left);
  void hold(Address address, std::unique_ptr<Piece> piece);
  void retire(Block* block);
  // Takes exactly this range out of the hole that contains it, and returns the range's block.
  [[nodiscard]] Block* take_hole(const AddressRange& range);

  // Enters the block in `by_address_`, which only a planned space has.
  void know(Block* block) {
    if (planned()) by_address_[block->address] = block;
  }

  // `check_invariants` checks the invariants that are named below.
  Arena& arena_;
  Kind kind_;
  Tiers tiers_;
  bool no_split_ = false;  // if it is set, each block is one piece
  ObjectPool<Block> objects_;
  // Blocks fill each reservation without gaps. Neighbouring holes are merged. Neighbouring free
  // blocks are merged, too, unless no_split_ is set. Holes, retired blocks and pieces begin and end
  // at granules. The bytes in used and free blocks == sum of piece->size.
  std::vector<AddressRange> reservations_;
  std::vector<Block*> firsts_;  // the first block of each reservation
  BestFitIndex free_;           // exactly the free blocks
  Holes holes_;                 // exactly the holes
  // The key is the first address of the mapping. Mappings do not overlap. If an entry has a piece
  // that serves, piece->space == this and piece->address == the key. Each retired block covers
  // exactly one old mapping.
  Mappings mappings_;
  std::size_t pieces_away_ = 0;                   // pieces with home != address
  std::size_t retired_count_ = 0;                 // number of retired blocks
  std::unordered_map<Address, Bytes> given_way_;  // calls of `give_way`, by address
  Repetition repetition_;                         // places of past large requests
  FlatMap<Block*> by_address_;                    // in a planned space: all blocks
};

}  // namespace plimsoll
