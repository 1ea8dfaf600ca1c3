#include "plimsoll/allocator/elastic/plan/place_search.h"

#include <algorithm>
#include <utility>

namespace plimsoll {
namespace {

// The search prices each byte to map or unmap. Unmapping addresses costs more than mapping a hole
// nearby, because no piece can return to unmapped addresses. In a program that repeats its steps,
// two requests may unmap each other's memory in every step. So the price of an address rises each
// time it is unmapped, until one of the two requests lies elsewhere.
constexpr Bytes kPriceOfMapping = 1;
Bytes price_of_unmapping(const MappedSpace& space, const Block* block) {
  return 6 * (1 + space.times_given_way(block->address));
}

struct Search {
  const MappedSpace& space;
  Bytes size = 0;
  const FreePieces& pieces;
  std::optional<std::uint64_t> idle_age;

  [[nodiscard]] bool may_unmap(const Block* retired) const {
    return idle_age && retired->age_base <= *idle_age;
  }
};

// Builds a place from its blocks, which are added from one end to the other.
class PlaceBuilder {
 public:
  PlaceBuilder(const Search& search, Address address, bool is_upwards)
      : search_(search), left_(search.size), is_upwards_(is_upwards) {
    place_.extent = {address, search.size};
  }

  [[nodiscard]] bool is_done() const { return left_ == 0; }
  [[nodiscard]] Place take() { return std::move(place_); }

  // Leaves out the first `size` bytes of the first block, which lie before the place.
  void skip(Bytes size) { skipped_ = size; }
  // Adds a block. Returns false if it cannot be part of the place.
  bool add(const Block* block) {
    if (block == nullptr) return false;
    switch (state_of(block)) {
      case AddressState::free: add_memory(block); return true;
      case AddressState::hole: add_gap(block); return true;
      case AddressState::retired: return add_retired(block);
      case AddressState::used: break;
    }
    return false;
  }

 private:
  bool add_retired(const Block* block) {
    if (search_.pieces.has(block->piece) && can_return(block)) {
      place_.returned.push_back(block->address);
      add_memory(block);
      return true;
    }
    if (!search_.may_unmap(block)) return false;
    place_.cleared.push_back(block->address);
    place_.price += block->size * price_of_unmapping(search_.space, block);
    add_gap(block);
    return true;
  }

  // Returns whether the piece of this retired block can return to the block's address. It cannot if
  // the place gets the piece at another address: at the piece's present address, or at another of
  // its old addresses, which was added to the place earlier.
  [[nodiscard]] bool can_return(const Block* retired) const {
    const Piece& piece = *retired->piece;
    const auto is_in_place = [&](Address address) {
      return address < place_.extent.end() && place_.extent.address < address + piece.size;
    };
    return !is_in_place(piece.address) &&
           std::ranges::none_of(piece.old_mappings, [&](const Block* old) {
             const Address address = old->address;
             const bool is_before =
                 is_upwards_ ? address < retired->address : address > retired->address;
             return is_before && is_in_place(address);
           });
  }

  Bytes use(const Block* block) {
    const Bytes used = std::min(left_, block->size - std::exchange(skipped_, 0));
    left_ -= used;
    return used;
  }

  void add_memory(const Block* block) {
    use(block);
    was_gap_ = false;
  }

  void add_gap(const Block* block) {
    const Bytes before = round_down(skipped_, kGranule);
    const Bytes skipped = skipped_ - before;
    const Bytes used = round_up(skipped + use(block), kGranule);
    const Bytes room = block->size - before - used;
    const Address address = block->address + (is_upwards_ ? before : room);
    place_.price += used * kPriceOfMapping;
    if (!was_gap_) {
      place_.gaps.push_back({{address, used}, 0, 0});
    } else {
      AddressRange& range = place_.gaps.back().range;
      range = {std::min(range.address, address), range.size + used};
    }
    (is_upwards_ ? place_.gaps.back().room_above : place_.gaps.back().room_below) = room;
    was_gap_ = true;
  }

  const Search& search_;
  Place place_;
  Bytes left_;
  Bytes skipped_ = 0;
  bool is_upwards_;
  bool was_gap_ = false;  // whether the last block was part of a gap
};

// Returns the place at `address`; nothing if one of its blocks cannot serve. `first` is the lowest
// block of the place, or the highest one if `is_upwards` is false.
std::optional<Place> place_along(const Search& search, const Block* first, Address address,
                                 bool is_upwards) {
  PlaceBuilder builder(search, address, is_upwards);
  if (is_upwards) builder.skip(address - first->address);
  for (const Block* block = first; !builder.is_done();
       block = is_upwards ? block->next : block->previous) {
    if (!builder.add(block)) return std::nullopt;
  }
  return builder.take();
}

// A block that can be part of a place, and the price of one byte of it.
struct Cell {
  const Block* block = nullptr;
  Bytes price = 0;
};

std::optional<Bytes> price_of(const Search& search, const Block* block) {
  switch (state_of(block)) {
    case AddressState::free: return 0;
    case AddressState::hole: return kPriceOfMapping;
    case AddressState::retired:
      if (search.pieces.has(block->piece)) return 0;
      if (!search.may_unmap(block)) return std::nullopt;
      return price_of_unmapping(search.space, block) + kPriceOfMapping;
    case AddressState::used: break;
  }
  return std::nullopt;
}

// Returns the row of adjacent blocks around `block`, all of which can be part of a place.
std::vector<Cell> row_around(const Search& search, const Block* block) {
  const Block* first = block;
  while (first->previous != nullptr && price_of(search, first->previous)) first = first->previous;
  std::vector<Cell> row;
  for (; first != nullptr; first = first->next) {
    const std::optional<Bytes> price = price_of(search, first);
    if (!price) break;
    row.push_back({first, *price});
  }
  return row;
}

// A possible place. If `is_upwards`, the place begins where `block` begins; otherwise it ends where
// `block` ends. `price` is a lower bound of the place's price.
struct Candidate {
  const Block* block = nullptr;
  bool is_upwards = true;
  Bytes price = 0;
  std::size_t number = 0;  // how many candidates were found before this one
};

// Orders a heap: the cheapest candidate comes first. If prices are equal, the candidate that was
// found earlier comes first.
bool is_later(const Candidate& a, const Candidate& b) {
  return a.price != b.price ? a.price > b.price : a.number > b.number;
}

// Adds a candidate for each block of the row that can be the first block of a place. If
// `is_upwards` is false, adds one for each block that can be the last block of a place.
void add_candidates(const Search& search, const std::vector<Cell>& row, bool is_upwards,
                    std::vector<Candidate>& found) {
  const std::size_t count = row.size();
  const auto cell = [&](std::size_t i) -> const Cell& {
    return row[is_upwards ? i : count - 1 - i];
  };
  Bytes size = 0;
  Bytes price = 0;
  std::size_t next = 0;  // `size` and `price` sum up the cells `first` to `next - 1`
  for (std::size_t first = 0; first < count; ++first) {
    for (; next < count && size < search.size; ++next) {
      size += cell(next).block->size;
      price += cell(next).block->size * cell(next).price;
    }
    if (size < search.size) return;
    const bool maps_last = cell(next - 1).price > 0;
    const Bytes unused = maps_last ? round_down(size - search.size, kGranule) : 0;
    found.push_back(
        {cell(first).block, is_upwards, price - unused * kPriceOfMapping, found.size()});
    size -= cell(first).block->size;
    price -= cell(first).block->size * cell(first).price;
  }
}

}  // namespace

std::optional<Place> find_place(const MappedSpace& space, Bytes size, const FreePieces& free,
                                std::optional<std::uint64_t> idle_age) {
  const Search search{space, size, free, idle_age};
  std::optional<Place> best;
  const auto consider = [&](std::optional<Place> place) {
    if (place && (!best || place->price < best->price)) best = std::move(place);
  };
  // In a no_split space, each block is one whole piece. So the place must lie within a single hole.
  if (space.no_split()) {
    for (const Block* const hole : space.holes()) {
      if (hole->size >= size) consider(place_along(search, hole, hole->address, true));
    }
    return best;
  }
  std::vector<Candidate> candidates;
  Address seen = 0;  // end of the last row that was examined
  const auto look_around = [&](const Block* block) {
    if (block->address < seen || !price_of(search, block)) return;
    const std::vector<Cell> row = row_around(search, block);
    seen = row.back().block->address + row.back().block->size;
    add_candidates(search, row, true, candidates);
    add_candidates(search, row, false, candidates);
  };
  auto hole = space.holes().begin();
  space.for_each_retired([&](const Block& retired) {
    for (; hole != space.holes().end() && (*hole)->address < retired.address; ++hole) {
      look_around(*hole);
    }
    look_around(&retired);
  });
  for (; hole != space.holes().end(); ++hole) look_around(*hole);
  std::ranges::make_heap(candidates, is_later);
  for (; !candidates.empty(); candidates.pop_back()) {
    std::ranges::pop_heap(candidates, is_later);
    const Candidate& each = candidates.back();
    if (best && best->price <= each.price) break;
    const Block* const block = each.block;
    const Address address = each.is_upwards ? block->address : block->address + block->size - size;
    consider(place_along(search, block, address, each.is_upwards));
  }
  return best;
}

std::optional<Place> place_at(const MappedSpace& space, Address address, Bytes size,
                              const FreePieces& free, std::optional<std::uint64_t> idle_age) {
  const Block* block = space.block_at(address);
  if (block == nullptr) return std::nullopt;
  if (space.no_split() && (block->address != address || block->size != size)) return std::nullopt;
  return place_along({space, size, free, idle_age}, block, address, true);
}

}  // namespace plimsoll
