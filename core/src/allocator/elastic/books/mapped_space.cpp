#include "plimsoll/allocator/elastic/books/mapped_space.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>

#include "plimsoll/allocator/elastic/books/arena.h"

namespace plimsoll {

MappedSpace::~MappedSpace() {
  for (auto& [address, mapping] : mappings_) {  // the pieces of old mappings may outlive this space
    Block* const retired = mapping.retired;
    if (retired != nullptr && retired->piece != nullptr) retired->piece->forget(*retired);
  }
}

// Returns a new block, often a recycled object whose fields have their old values. Sets only the
// fields whose old values would be wrong, because this function is on the hot path.
Block* MappedSpace::make(Address address, Bytes size) {
  Block* const block = objects_.make_unset();
  block->address = address;
  block->size = size;
  block->arena = &arena_;
  block->space = this;
  block->previous = block->next = nullptr;
  block->age_base = 0;
  block->allocated = false;
  block->mapped = true;
  block->piece = nullptr;
  block->retired = false;
  block->borrows = false;
  return block;
}

void MappedSpace::drop(Block* block) {
  block->arena = nullptr;
  objects_.recycle(block);
}

void MappedSpace::link(Block* block) {
  if (block->previous != nullptr) {
    block->previous->next = block;
  } else {
    *std::find(firsts_.begin(), firsts_.end(), block->next) = block;
  }
}

Block* MappedSpace::split_at(Block* block, Address address) {
  if (address == block->address) return block;
  Block* const back = make(address, block->address + block->size - address);
  back->mapped = block->mapped;
  back->age_base = block->age_base;
  back->previous = block;
  back->next = block->next;
  if (back->next != nullptr) back->next->previous = back;
  block->next = back;
  block->size -= back->size;
  know(back);
  return back;
}

void MappedSpace::absorb_next(Block* block, Block* second) {
  if (planned()) by_address_.erase(by_address_.find(second->address));
  block->size += second->size;
  block->next = second->next;
  if (block->next != nullptr) block->next->previous = block;
  block->age_base = std::max(block->age_base, second->age_base);
  drop(second);
}

bool MappedSpace::is_unused(Address address, Bytes size) const {
  for (const Block* block = block_at(address); block != nullptr; block = block->next) {
    if (block->mapped && block->is_active()) return false;
    if (address + size <= block->address + block->size) return true;
  }
  return false;
}

Block* MappedSpace::take_at(Address address, Bytes size) {
  Block* block = block_at(address);
  if (block == nullptr || !is_free(block) || block->address + block->size < address + size ||
      (no_split_ && (block->address != address || block->size != size))) {
    return nullptr;
  }
  return take_from(block, address, size);
}

// Takes the `size` bytes at `address` out of the free block that contains them.
Block* MappedSpace::take_from(Block* block, Address address, Bytes size) {
  free_.erase(block);
  if (block->address < address) {
    Block* const back = split_at(block, address);
    free_.insert(block);
    block = back;
  }
  return cut(block, size);
}

Block* MappedSpace::take_expected(Bytes size) {
  const Address first = no_split_ ? 0 : repetition_.expect(size);
  if (first == 0) return nullptr;
  Block* const best = free_.take(size);
  if (best == nullptr) return nullptr;
  if (best->address == first) return cut(best, size);
  free_.insert(best);
  for (const Address address : expected(size)) {
    if (address == 0) return nullptr;
    Block* const block = free_.find_if(size, kMostLooked, [&](const Block* each) {
      return each->address <= address && address + size <= each->address + each->size;
    });
    if (block != nullptr) return take_from(block, address, size);
  }
  return nullptr;
}

bool MappedSpace::may_return(Bytes size) const {
  if (retired_count_ == 0) return false;
  const Address address = surely_expected(size);
  if (address == 0) return false;
  bool any = false;
  bool all = true;
  for_each_retired({address, size}, [&](const Block& retired) {
    any = true;
    all = all && retired.piece != nullptr && retired.piece->space == this;
  });
  return any && all;
}

void MappedSpace::free(Block* block, std::uint64_t age) {
  block->age_base = age;
  if (!no_split_) {
    if (Block* const next = block->next; next != nullptr && is_free(next)) {
      free_.erase(next);
      absorb_next(block, next);
    }
    if (Block* const previous = block->previous; previous != nullptr && is_free(previous)) {
      free_.erase(previous);
      absorb_next(previous, block);
      block = previous;
    }
  }
  block->age_base = age;
  free_.insert(block);
}

// --- addresses without memory ------------------------------------------------------------------

void MappedSpace::add_reservation(Address address, Bytes size) {
  Block* const hole = make(address, size);
  hole->mapped = false;
  reservations_.push_back({address, size});
  firsts_.push_back(hole);
  holes_.insert(hole);
  know(hole);
  if (kind_ == Kind::large) repetition_.open();
}

std::optional<AddressRange> MappedSpace::hole_for(Bytes size) const {
  for (const Block* const hole : holes_) {
    if (hole->size >= size) return AddressRange{hole->address, hole->size};
  }
  return std::nullopt;
}

void MappedSpace::make_hole(Block* block) {
  block->mapped = false;
  block->retired = false;
  if (Block* const next = block->next; next != nullptr && is_hole(next)) {
    holes_.erase(next);
    absorb_next(block, next);
  }
  if (Block* const previous = block->previous; previous != nullptr && is_hole(previous)) {
    absorb_next(previous, block);  // `previous` is in `holes_` already
    return;
  }
  holes_.insert(block);
}

Block* MappedSpace::take_hole(const AddressRange& range) {
  const auto hole = std::prev(holes_.upper_bound(range.address));
  Block* block = *hole;
  holes_.erase(hole);
  if (block->address < range.address) {
    Block* const back = split_at(block, range.address);
    holes_.insert(block);
    block = back;
  }
  if (block->size > range.size) holes_.insert(split_at(block, range.end()));
  return block;
}

// --- pieces ------------------------------------------------------------------------------------

void MappedSpace::add_free_pieces(std::uint64_t age, std::vector<FreePiece>& found) const {
  const auto add = [&](Block* block) {
    if (block->age_base > age) return;
    const Address end = block->address + block->size;
    for (auto next = mappings_.lower_bound(block->address);
         next != mappings_.end() && next->first < end && next->second.serves->end() <= end;
         ++next) {
      found.push_back({next->second.serves.get(), block});
    }
  };
  free_.for_each(add, kGranule);
}

Bytes MappedSpace::shared_bytes(Address address, Bytes size) const {
  if (tiers_ == Tiers::dedicated) return 0;
  Bytes shared = 0;
  for_each_piece(address, size, [&](const Piece& piece) {
    if (piece.tier != Tier::shared) return;
    shared += std::min(address + size, piece.end()) - std::max(address, piece.address);
  });
  return shared;
}

void MappedSpace::hold(Address address, std::unique_ptr<Piece> piece) {
  piece->space = this;
  piece->address = address;
  if (piece->home != address) ++pieces_away_;
  mappings_[address].serves = std::move(piece);
}

void MappedSpace::add_piece(Address address, std::unique_ptr<Piece> piece, std::uint64_t age) {
  Block* const block = take_hole({address, piece->size});
  block->mapped = true;
  hold(address, std::move(piece));
  free(block, age);
}

// Takes the range out of the free block that contains it. When the caller looked up `first`,
// `first` contained the range. If `first` has been split since then, a later block may contain the
// range.
Block* MappedSpace::take_out(Block* first, const AddressRange& range) {
  Block* block = first;
  while (block->address + block->size <= range.address) block = block->next;
  free_.erase(block);
  if (block->address < range.address) {
    Block* const back = split_at(block, range.address);
    free_.insert(block);
    block = back;
  }
  if (block->size > range.size) free_.insert(split_at(block, range.end()));
  return block;
}

std::unique_ptr<Piece> MappedSpace::remove_piece(const FreePiece& free_piece) {
  const Address address = free_piece.piece->address;
  Block* const block = take_out(free_piece.block, {address, free_piece.piece->size});
  block->mapped = false;
  std::unique_ptr<Piece> piece = std::move(mappings_.find(address)->second.serves);
  if (piece->home != address) --pieces_away_;
  retire(block);
  piece->left(*block);
  return piece;
}

void MappedSpace::return_piece(Address address, std::unique_ptr<Piece> piece, std::uint64_t age) {
  Block* const block = std::exchange(mappings_.find(address)->second.retired, nullptr);
  piece->forget(*block);
  --retired_count_;
  block->mapped = true;
  block->retired = false;
  hold(address, std::move(piece));
  free(block, age);
}

Block* MappedSpace::exchange(Mappings::iterator from, Mappings::iterator to, Block* left) {
  auto& [from_address, served] = *from;
  auto& [to_address, returned] = *to;
  Block* const block = std::exchange(returned.retired, nullptr);
  block->retired = false;
  left->mapped = false;
  left->retired = true;
  served.retired = left;
  returned.serves = std::move(served.serves);
  Piece& piece = *returned.serves;
  piece.exchange(*block, *left);
  if (piece.home == from_address) ++pieces_away_;
  if (piece.home == to_address) --pieces_away_;
  piece.address = to_address;
  return block;
}

void MappedSpace::return_pieces(const std::vector<Return>& pieces, std::uint64_t age) {
  std::vector<Block*> blocks;
  blocks.reserve(pieces.size());
  auto to = mappings_.end();
  for (std::size_t first = 0; first < pieces.size();) {
    const auto end_of = [&](std::size_t i) { return pieces[i].free.piece->end(); };
    const auto is_beside = [&](std::size_t i) {
      return pieces[i].free.block == pieces[i - 1].free.block &&
             pieces[i].free.piece->address == end_of(i - 1);
    };
    std::size_t last = first;
    while (last + 1 < pieces.size() && is_beside(last + 1)) ++last;
    const Address begin = pieces[first].free.piece->address;
    Block* left = take_out(pieces[first].free.block, {begin, end_of(last) - begin});
    for (auto from = mappings_.find(begin); first <= last; ++first, ++from) {
      Block* const rest = first < last ? split_at(left, end_of(first)) : nullptr;
      if (to != mappings_.end()) ++to;
      if (to == mappings_.end() || to->first != pieces[first].to) {
        to = mappings_.find(pieces[first].to);
      }
      blocks.push_back(exchange(from, to, left));
      left = rest;
    }
  }
  std::ranges::sort(blocks, {}, &Block::address);
  for (std::size_t next = 0; next < blocks.size();) {
    Block* const block = blocks[next++];
    block->mapped = true;
    while (!no_split_ && next < blocks.size() && blocks[next] == block->next) {
      absorb_next(block, blocks[next++]);
    }
    free(block, age);
  }
}

void MappedSpace::add_pieces_away(Block* block, const AddressRange& range,
                                  std::vector<FreePiece>& found) {
  const Address end = block->address + block->size;
  const auto address_of = [](const Block* old) { return old->address; };
  auto next = mappings_.lower_bound(block->address);
  if (range.address > block->address) next = std::prev(mappings_.upper_bound(range.address));
  for (; next != mappings_.end() && next->first < std::min(end, range.end()); ++next) {
    Piece& piece = *next->second.serves;
    if (piece.end() > end) break;
    if (piece.home == piece.address || piece.address < block->address) continue;
    if (std::ranges::find(piece.old_mappings, piece.home, address_of) != piece.old_mappings.end()) {
      found.push_back({&piece, block});
    } else {
      set_home(piece);
    }
  }
}

void MappedSpace::set_home(Piece& piece) {
  if (piece.home != piece.address) --pieces_away_;
  piece.home = piece.address;
}

void MappedSpace::retire(const AddressRange& range) {
  Block* const block = take_hole(range);
  block->age_base = 0;
  retire(block);
}

void MappedSpace::retire(Block* block) {
  mappings_[block->address].retired = block;
  ++retired_count_;
  block->retired = true;
}

void MappedSpace::clear(Address address) {
  const auto found = mappings_.find(address);
  Block* const block = found->second.retired;
  if (block->piece != nullptr) block->piece->forget(*block);
  make_hole(block);
  mappings_.erase(found);
  --retired_count_;
}

void MappedSpace::give_way(Address address) {
  clear(address);
  if (given_way_.size() >= kMostGivenWay && !given_way_.contains(address)) given_way_.clear();
  ++given_way_[address];
}

// Returns the last retired block (old addresses of a piece that has moved) that begins at `address`
// or before. Null if none of the last `kMostLooked` mappings up to `address` is retired.
Block* MappedSpace::last_retired(Address address) const {
  if (retired_count_ == 0) return nullptr;
  auto next = mappings_.upper_bound(address);
  for (std::size_t looked = 0; next != mappings_.begin() && looked < kMostLooked; ++looked) {
    --next;
    if (next->second.retired != nullptr) return next->second.retired;
  }
  return nullptr;
}

Block* MappedSpace::block_at(Address address) const {
  if (planned()) {
    const auto after = by_address_.upper_bound(address);
    if (after == by_address_.begin()) return nullptr;
    Block* const block = std::prev(after)->second;
    return address < block->address + block->size ? block : nullptr;
  }
  for (std::size_t i = 0; i < reservations_.size(); ++i) {
    if (address < reservations_[i].address || address >= reservations_[i].end()) continue;
    Block* block = last_retired(address);
    if (block == nullptr || block->address < reservations_[i].address) block = firsts_[i];
    while (address >= block->address + block->size) block = block->next;
    return block;
  }
  return nullptr;
}

void MappedSpace::check_invariants() const {
  const auto require = [](bool holds, const char* invariant) {
    if (!holds) throw std::logic_error(std::string("broken invariant: ") + invariant);
  };
  std::size_t blocks = 0;
  std::size_t free_blocks = 0;
  std::size_t holes = 0;
  Bytes with_memory = 0;
  for (std::size_t i = 0; i < firsts_.size(); ++i) {
    Address end = reservations_[i].address;
    const Block* previous = nullptr;
    for (const Block* block = firsts_[i]; block != nullptr; block = block->next) {
      require(block->address == end && block->size > 0,
              "the blocks of a reservation leave no gaps");
      require(block->previous == previous, "neighbours know each other");
      require(block->mapped || (block->address % kGranule == 0 && block->size % kGranule == 0),
              "memory ends at granules");
      if (previous != nullptr && !no_split_) {
        require(!is_free(block) || !is_free(previous), "two free neighbours are merged");
      }
      if (previous != nullptr) {
        require(!is_hole(block) || !is_hole(previous), "two holes are merged");
      }
      ++blocks;
      require(!planned() || block_at(block->address) == block,
              "a planned space knows its blocks by address");
      if (is_free(block)) ++free_blocks;
      if (is_hole(block)) ++holes;
      if (block->mapped) with_memory += block->size;
      end += block->size;
      previous = block;
    }
    require(end == reservations_[i].end(), "the blocks of a reservation make it up");
  }
  Bytes in_pieces = 0;
  std::size_t away = 0;
  Address end = 0;
  std::size_t retired_count = 0;
  for (const auto& [address, mapping] : mappings_) {
    const std::unique_ptr<Piece>& serves = mapping.serves;
    const Block* const retired = mapping.retired;
    require(address >= end, "mappings do not overlap");
    require((serves == nullptr) != (retired == nullptr), "what is mapped serves or is retired");
    if (serves == nullptr) {
      require(retired->address == address && retired->retired && !retired->mapped,
              "retired blocks are known by address");
      const Piece* const piece = retired->piece;
      require(piece == nullptr || piece->size == retired->size,
              "a retired block is one piece's addresses");
      require(piece == nullptr || std::ranges::count(piece->old_mappings, retired) == 1,
              "retired addresses know what is mapped there");
      end = address + retired->size;
      ++retired_count;
      continue;
    }
    require(block_at(address)->mapped, "a piece lies where there is memory");
    require(serves->space == this && serves->address == address, "a piece knows where it serves");
    for (const Block* const old : serves->old_mappings) {
      require(old->piece == serves.get(), "a piece knows where it is still mapped");
    }
    end = serves->end();
    in_pieces += serves->size;
    if (serves->home != address) ++away;
  }
  const auto known = static_cast<std::size_t>(by_address_.end() - by_address_.begin());
  require(known == (planned() ? blocks : 0), "only a planned space knows blocks by address");
  require(away == pieces_away_, "the number of pieces away from home is right");
  require(retired_count == retired_count_, "the number of retired blocks is right");
  require(free_.count() == free_blocks, "the index holds exactly the free blocks");
  require(holes_.size() == holes, "the set of holes is complete");
  require(in_pieces == with_memory, "all memory is in pieces");
}

}  // namespace plimsoll
