#include "plimsoll/allocator/elastic/plan/plan.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <span>

#include "plimsoll/allocator/elastic/plan/place_search.h"
#include "plimsoll/allocator/elastic/plan/planned_area.h"

namespace plimsoll {
namespace {

// The number of coming requests that `put_wanted_last` looks at, which is less than a whole step.
constexpr std::size_t kSoon = 6;
constexpr Bytes kLargestForSmall = 4 * kGranule;  // the largest piece that a small request may pin
// A request keeps its place if its size is at least twice the place's price. Mapping a byte into a
// hole costs 1; place_search.h lists all prices.
constexpr Bytes kSizePerPriceOfStaying = 2;
// The host waits for the stream only if at least this many pieces can return after the wait.
// Mapping as many pieces elsewhere would take half a millisecond.
constexpr std::size_t kLeastToWaitFor = 16;

// --- the free pieces that may serve

// Adds to `pieces` the arena's free pieces that are still mapped in `range` from an earlier use.
// These pieces can return to `range` without a call of the driver.
void offer_returning(const MappedSpace& space, const AddressRange& range, FreePieces& pieces) {
  Block* block = nullptr;  // kept for the next piece, because it often lies in the same block
  space.for_each_retired(range, [&](const Block& retired) {
    Piece* const piece = retired.piece;
    if (piece == nullptr || pieces.has(piece) || &piece->space->arena() != &space.arena() ||
        !may_use(space.tiers(), piece->tier)) {
      return;
    }
    const auto begins_in = [piece](const Block* each) {
      return each->space == piece->space && each->address <= piece->address &&
             piece->address < each->address + each->size;
    };
    if (block == nullptr || !begins_in(block)) block = piece->space->block_at(piece->address);
    const bool is_whole = piece->end() <= block->address + block->size;
    if (is_free(block) && is_whole) pieces.add({piece, block});
  });
}

// Returns the free pieces of the space's own arena that may be mapped into the space. All queued
// work on these pieces is on the stream of the arena, so there is nothing to wait for.
std::vector<FreePiece> own_sources(const MappedSpace& space) {
  const Arena& own = space.arena();
  if (!own.pool->may_give()) return {};
  std::vector<FreePiece> sources = own.free_pieces(kAnyAge);
  if (!space.planned()) add_area_top(own, kAnyAge, sources);
  std::erase_if(sources,
                [&](const FreePiece& free) { return !may_use(space.tiers(), free.piece->tier); });
  return sources;
}

// Returns all free pieces that may be mapped into the space: those of its own arena and, if the
// arena may take from others, the pieces of other arenas on which no queued work is left.
std::vector<FreePiece> sources_for(const Arenas& arenas, const MappedSpace& space) {
  std::vector<FreePiece> sources = own_sources(space);
  // `may_take_from_others` limits only requests for dedicated memory. A request for shared memory
  // may always take pieces from other arenas.
  if (space.tiers() == Tiers::dedicated && !space.arena().may_take_from_others()) return sources;
  for (const Arena& other : arenas.all()) {
    if (&other == &space.arena() || !other.may_give_to_others()) continue;
    std::vector<FreePiece> pieces = other.free_pieces(other.idle_age);
    add_area_top(other, other.idle_age, pieces);
    for (const FreePiece& free : pieces) {
      if (may_use(space.tiers(), free.piece->tier)) sources.push_back(free);
    }
  }
  return sources;
}

// Puts the best pieces first. The first of these rules that makes a difference decides:
// - The arena's own pieces come before those of other arenas.
// - Pieces outside the arena's planned area come before those inside.
// - Large pieces come before small ones.
// - If the request recurs, own pieces that were freed longest ago come first.
// - Pieces of small free blocks come first, because such blocks are of less use where they are.
void sort_best_first(const Arena& own, std::vector<FreePiece>& pieces, bool recurs = false) {
  const auto is_better = [&](const FreePiece& a, const FreePiece& b) {
    const bool is_own = a.block->arena == &own;
    if (is_own != (b.block->arena == &own)) return is_own;
    const bool is_planned = a.piece->space == &own.planned;
    if (is_planned != (b.piece->space == &own.planned)) return !is_planned;
    if (a.piece->size != b.piece->size) return a.piece->size > b.piece->size;
    const bool is_older = a.block->age_base < b.block->age_base;
    if (recurs && is_own && a.block->age_base != b.block->age_base) return is_older;
    if (a.block->size != b.block->size) return a.block->size < b.block->size;
    return a.piece->address > b.piece->address;
  };
  std::ranges::sort(pieces, is_better);
}

// Moves each piece that one of the next `kSoon` requests will need to the end of `pieces`, even
// behind the pieces of other arenas. If the present request took such a piece, the coming request
// would take it away again, and another piece would have to replace it.
void put_wanted_last(const MappedSpace& space, std::vector<FreePiece>& pieces) {
  const std::vector<AddressRange> coming = space.coming(kSoon);
  const auto is_wanted = [&](Address address) {
    return std::ranges::any_of(coming, [&](const AddressRange& range) {
      return range.address <= address && address < range.end();
    });
  };
  std::ranges::stable_partition(pieces, [&](const FreePiece& each) {
    const Piece& piece = *each.piece;
    return !is_wanted(piece.address) &&
           std::ranges::none_of(piece.old_mappings,
                                [&](const Block* old) { return is_wanted(old->address); });
  });
}

// --- the pieces that fill a place

Filling filled_by(const FreePiece& free) { return {0, free.piece->size, free.piece->tier, free}; }

void lie_side_by_side(Address address, std::span<Filling> fillings) {
  for (Filling& filling : fillings) {
    filling.address = address;
    address += filling.size;
  }
}

// Returns a filling for each piece that returns to the place, and removes these pieces from
// `pieces`.
std::vector<Filling> returns_to(const MappedSpace& space, const Place& place, FreePieces& pieces) {
  std::vector<Filling> fillings;
  for (const Address address : place.returned) {
    Filling filling = filled_by(pieces.take(space.retired_at(address).piece));
    filling.address = address;
    filling.is_mapped = true;
    fillings.push_back(filling);
  }
  return fillings;
}

// Takes a free piece that is larger than `left`, the unfilled rest of the gap, if there is room
// beside the gap for the surplus. Using such a piece is better than creating memory. A small
// request takes no large piece, because the request would pin all of it. Returns the surplus;
// nothing if no piece was taken.
std::optional<Bytes> take_larger(const MappedSpace& space, const Gap& gap, Tier tier, Bytes left,
                                 std::vector<FreePiece>& sources, std::vector<Filling>& fillings) {
  const auto larger = std::ranges::find_if(sources.rbegin(), sources.rend(), [&](const auto& each) {
    const Piece& piece = *each.piece;
    if (left == 0 || space.no_split()) return false;
    if (space.small() && piece.size > kLargestForSmall) return false;
    const Bytes more = piece.size - left;
    return piece.tier == tier && piece.size > left &&
           (more <= gap.room_above || more <= gap.room_below);
  });
  if (larger == sources.rend()) return std::nullopt;
  fillings.push_back(filled_by(*larger));
  sources.erase(std::next(larger).base());
  return fillings.back().size - left;
}

// Fills the gap with free pieces as far as they fit, and with new memory for the rest. Shared
// memory comes after all dedicated memory.
void fill_gap(const MappedSpace& space, const Gap& gap, Bytes& dedicated_room,
              std::vector<FreePiece>& sources, std::vector<Filling>& fillings) {
  const bool is_whole = space.no_split();
  const std::size_t first = fillings.size();
  Bytes left = gap.range.size;
  Address address = gap.range.address;
  for (const Tier tier : {Tier::dedicated, Tier::shared}) {
    if (!may_use(space.tiers(), tier)) continue;
    std::erase_if(sources, [&](const FreePiece& source) {
      const Bytes size = source.piece->size;
      if (source.piece->tier != tier || (is_whole ? size != left : size > left)) return false;
      left -= size;
      fillings.push_back(filled_by(source));
      return true;
    });
    if (const auto more = take_larger(space, gap, tier, left, sources, fillings)) {
      if (*more > gap.room_above) address -= *more;
      left = 0;
    }
    Bytes size = left;
    if (space.tiers() == Tiers::both && tier == Tier::dedicated) {
      size = is_whole && left > dedicated_room ? 0 : std::min(left, dedicated_room);
      dedicated_room -= size;
    }
    if (size > 0) fillings.push_back({0, size, tier, {}, false, gap.range.size, left});
    left -= size;
  }
  lie_side_by_side(address, std::span(fillings).subspan(first));
}

Plan fill_place(const MappedSpace& space, const Place& place, FreePieces& pieces,
                Bytes dedicated_room) {
  Plan plan{place.cleared, returns_to(space, place, pieces)};
  if (place.gaps.empty()) return plan;
  std::vector<FreePiece> sources = pieces.left();
  std::erase_if(sources, [&](const FreePiece& source) {  // pieces in the place cannot move into it
    const Piece& piece = *source.piece;
    return piece.space == &space && piece.address < place.extent.end() &&
           place.extent.address < piece.end();
  });
  const bool recurs = space.surely_expected(place.extent.size) == place.extent.address;
  sort_best_first(space.arena(), sources, recurs);
  if (recurs) put_wanted_last(space, sources);
  for (const Gap& gap : place.gaps) fill_gap(space, gap, dedicated_room, sources, plan.fillings);
  return plan;
}

// --- the place of a request

std::optional<Plan> plan_return_anywhere(const MappedSpace& space, Bytes size) {
  if (space.retired_count() == 0) return std::nullopt;
  FreePieces pieces;
  for (const AddressRange& range : space.reservations()) offer_returning(space, range, pieces);
  const std::optional<Place> place = find_place(space, size, pieces);
  if (!place || !place->gaps.empty()) return std::nullopt;
  return Plan{{}, returns_to(space, *place, pieces)};
}

bool stays(Bytes size, const Place& place) { return place.price <= size / kSizePerPriceOfStaying; }

// Returns the place that the request had in the previous step, if little has to be mapped there;
// otherwise the cheapest place. Staying is preferred, because a request that gets a new place
// displaces the request that had this place before. The displaced request then displaces a third
// one, and so on, until a whole step has been mapped again.
std::optional<Place> place_for(const MappedSpace& space, Bytes size, const FreePieces& pieces,
                               std::optional<std::uint64_t> idle_age) {
  if (const Address address = space.expected(size)[0]; address != 0) {
    std::optional<Place> place = place_at(space, address, size, pieces, idle_age);
    if (place && stays(size, *place)) return place;
  }
  return find_place(space, size, pieces, idle_age);
}

}  // namespace

std::optional<Plan> plan_return(const MappedSpace& space, Bytes size) {
  if (!space.arena().pool->may_give()) return std::nullopt;
  if (space.small()) return plan_return_anywhere(space, size);
  for (const Address address : space.expected(size)) {
    if (address == 0) break;  // no further place is known
    if (auto plan = plan_return_to(space, size, address)) return plan;
  }
  return std::nullopt;
}

std::optional<Plan> plan_sure_return(const MappedSpace& space, Bytes size) {
  if (!space.arena().pool->may_give() || !space.may_return(size)) return std::nullopt;
  const Address address = space.expected(size)[0];
  return address == 0 ? std::nullopt : plan_return_to(space, size, address);
}

std::optional<Plan> plan_return_to(const MappedSpace& space, Bytes size, Address address) {
  FreePieces pieces;
  offer_returning(space, {address, size}, pieces);
  const std::optional<Place> place = place_at(space, address, size, pieces);
  if (!place || !place->gaps.empty()) return std::nullopt;
  return Plan{{}, returns_to(space, *place, pieces)};
}

bool gains_by_waiting(const MappedSpace& space, Bytes size) {
  const Address address = space.surely_expected(size);
  if (address == 0 || !space.arena().pool->may_give()) return false;
  FreePieces pieces;
  offer_returning(space, {address, size}, pieces);
  if (place_at(space, address, size, pieces, space.arena().idle_age)) return false;
  const std::optional<Place> place = place_at(space, address, size, pieces, kAnyAge);
  return place && stays(size, *place) && place->returned.size() >= kLeastToWaitFor;
}

std::optional<Plan> plan_growth_at(const Arenas& arenas, const MappedSpace& space, Bytes size,
                                   Address address) {
  FreePieces pieces;
  offer_returning(space, {address, size}, pieces);
  for (const FreePiece& each : sources_for(arenas, space)) {
    if (!pieces.has(each.piece)) pieces.add(each);
  }
  std::optional<std::uint64_t> idle_age;
  if (!arenas.is_capturing()) idle_age = space.arena().idle_age;
  const std::optional<Place> place = place_at(space, address, size, pieces, idle_age);
  if (!place) return std::nullopt;
  return fill_place(space, *place, pieces, 0);
}

bool waits_to_lie_at(const MappedSpace& space, Bytes size, Address address) {
  return !place_at(space, address, size, {}, space.arena().idle_age) &&
         place_at(space, address, size, {}, kAnyAge);
}

Plan plan_growth(const Arenas& arenas, const MappedSpace& space, Bytes size, Bytes dedicated_room) {
  std::optional<std::uint64_t> idle_age;  // none during a capture: nothing may be unmapped then
  if (!arenas.is_capturing()) idle_age = space.arena().idle_age;
  FreePieces pieces;
  for (const FreePiece& each : sources_for(arenas, space)) pieces.add(each);
  const std::optional<Place> place = place_for(space, size, pieces, idle_age);
  return place ? fill_place(space, *place, pieces, dedicated_room) : Plan{{}, {}, size};
}

std::optional<Plan> plan_whole_pieces(const Arenas& arenas, const MappedSpace& space, Bytes size) {
  if (space.no_split()) return std::nullopt;
  const auto size_of = [](const FreePiece& each) { return each.piece->size; };
  std::vector<FreePiece> sources = sources_for(arenas, space);
  Bytes most = 0;
  for (const FreePiece& each : sources) most += size_of(each);
  if (most < size) return std::nullopt;
  sort_best_first(space.arena(), sources);
  std::ranges::stable_sort(sources, std::greater{}, size_of);
  Plan plan;
  Bytes total = 0;
  // Each round takes the largest piece that is left. If a single piece is enough for the rest of
  // the size, the round takes the smallest piece that is enough.
  for (auto next = sources.begin(); total < size; ++next) {
    const auto suffices = [&](Bytes each) { return total + each >= size; };
    const auto enough = std::ranges::partition_point(next, sources.end(), suffices, size_of);
    if (enough != next) {
      next = std::ranges::find(next, enough, size_of(*std::prev(enough)), size_of);
    }
    total += size_of(*next);
    plan.fillings.push_back(filled_by(*next));
  }
  const std::optional<AddressRange> hole = space.hole_for(total);
  if (!hole) return Plan{{}, {}, total};
  lie_side_by_side(hole->address, plan.fillings);
  return plan;
}

}  // namespace plimsoll
