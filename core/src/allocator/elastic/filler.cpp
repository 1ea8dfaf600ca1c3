#include "plimsoll/allocator/elastic/filler.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <span>
#include <string>

namespace plimsoll {
namespace {

constexpr std::size_t kSoon = 6;  // requests, of which a step has some more

// The best first: the arena's own, then what a plan wants back, then those of others; large ones
// first, and of equal ones those that were freed long ago where the request recurs, else those of
// small free blocks, which are of less use where they are.
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

// Pieces that a request wants back which is about to come go last, even after those of other
// arenas: it would unmap them here, and map others in their place.
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

void lie_side_by_side(Address address, std::span<Filling> fillings) {
  for (Filling& filling : fillings) {
    filling.address = address;
    address += filling.size;
  }
}

}  // namespace

std::vector<Filling> Filler::revivals(const MappedSpace& space, const Place& place,
                                      FreePieces& pieces) {
  std::vector<Filling> fillings;
  for (const Address address : place.revived) {
    fillings.push_back(Filling::by(pieces.take(space.retired_at(address).piece), true));
    fillings.back().address = address;
  }
  return fillings;
}

std::vector<Filling> Filler::plan(MappedSpace& space, const Place& place,
                                  FreePieces& pieces) const {
  std::vector<Filling> fillings = revivals(space, place, pieces);
  if (place.gaps.empty()) return fillings;
  std::vector<FreePiece> sources = pieces.left();
  std::erase_if(sources, [&](const FreePiece& source) {  // it serves where it is
    const Piece& piece = *source.piece;
    return piece.space == &space && piece.address < place.extent.end() &&
           place.extent.address < piece.end();
  });
  const bool recurs = space.surely_expected(place.extent.size) == place.extent.address;
  sort_best_first(space.arena(), sources, recurs);
  if (recurs) put_wanted_last(space, sources);
  Bytes room = space.tiers() == Tiers::both ? round_down(memory_.dedicated_room(), kGranule) : 0;
  for (const Gap& gap : place.gaps) fill_gap(space, gap, room, sources, fillings);
  return fillings;
}

// Fills the gap from the sources as far as they fit, and with new pieces for the rest. A source
// that is more than the gap needs still comes before new memory, if there is room for it; but small
// requests do not pin it. Shared memory comes after all dedicated memory.
void Filler::fill_gap(const MappedSpace& space, const Gap& gap, Bytes& dedicated_room,
                      std::vector<FreePiece>& sources, std::vector<Filling>& fillings) const {
  const bool is_whole = space.no_split();
  const Tiers tiers = space.tiers();
  const std::size_t first = fillings.size();
  Bytes left = gap.range.size;
  Address address = gap.range.address;
  for (const Tier tier : {Tier::dedicated, Tier::shared}) {
    if (!may_use(tiers, tier)) continue;
    std::erase_if(sources, [&](const FreePiece& source) {
      const Bytes size = source.piece->size;
      if (source.piece->tier != tier || (is_whole ? size != left : size > left)) return false;
      left -= size;
      fillings.push_back(Filling::by(source));
      return true;
    });
    const auto larger =
        std::ranges::find_if(sources.rbegin(), sources.rend(), [&](const FreePiece& source) {
          const Piece& piece = *source.piece;
          if (left == 0 || is_whole) return false;
          if (space.small() && piece.size > kLargestForSmall) return false;
          const Bytes more = piece.size - left;
          return piece.tier == tier && piece.size > left &&
                 (more <= gap.room_above || more <= gap.room_below);
        });
    if (larger != sources.rend()) {
      const Bytes more = larger->piece->size - left;
      if (more > gap.room_above) address -= more;
      fillings.push_back(Filling::by(*larger));
      sources.erase(std::next(larger).base());
      left = 0;
    }
    if (left == 0) continue;
    // Asked once: the driver takes as long to answer as to map a piece.
    const Bytes room = tier == Tier::dedicated ? memory_.dedicated_room() : memory_.shared_room();
    while (left > 0) {
      Bytes size = piece_size(space, left, gap.range.size, room);
      if (tiers == Tiers::both && tier == Tier::dedicated) {
        if (is_whole ? size > dedicated_room : dedicated_room == 0) break;
        size = std::min(size, dedicated_room);
        dedicated_room -= size;
      }
      fillings.push_back(Filling::anew(size, tier));
      left -= size;
    }
  }
  lie_side_by_side(address, std::span(fillings).subspan(first));
}

// How large the next piece of new memory is, where so much is missing of a gap, and there is room
// for so much. Parts become smaller towards the end: few are mapped, and a live block that ends
// there holds little.
Bytes Filler::piece_size(const MappedSpace& space, Bytes missing, Bytes gap, Bytes room) const {
  if (space.no_split()) return missing;
  if (space.small() || &space == &space.arena().planned) return kGranule;
  const Bytes largest = std::max(room / kRoomParts, kGranule);
  const Bytes own = std::min({kLargestOwnPiece, space.arena().reserved / kOwnPiecePart, largest});
  if (missing == gap && gap <= own) return gap;
  const Bytes all = std::max(ledger_.reserved(), gap);
  const auto part = [&](Bytes parts) {
    const Bytes size = std::bit_floor(std::min(all / parts, largest));
    return std::clamp(size, kGranule, kLargestPart);
  };
  const Bytes half = std::bit_floor(missing / 2);
  return std::min(missing, std::clamp(half, part(kMostParts), part(kFewestParts)));
}

std::optional<std::vector<Filling>> Filler::plan_with_whole_pieces(MappedSpace& space, Bytes size,
                                                                   std::vector<FreePiece> sources) {
  sort_best_first(space.arena(), sources);
  std::vector<Filling> fillings;
  Bytes total = 0;
  while (total < size && !sources.empty()) {
    // The smallest that suffices, else the largest.
    auto next = sources.begin();
    for (auto it = sources.begin(); it != sources.end(); ++it) {
      const Bytes candidate = it->piece->size;
      const Bytes best = next->piece->size;
      const bool suffices = total + candidate >= size;
      if (suffices ? (total + best < size || candidate < best) : candidate > best) next = it;
    }
    total += next->piece->size;
    fillings.push_back(Filling::by(*next));
    sources.erase(next);
  }
  if (total < size) return std::nullopt;
  std::optional<AddressRange> hole = space.hole_for(total);
  if (!hole && arenas_.add_reservation(space, total)) hole = space.hole_for(total);
  if (!hole) return std::nullopt;
  lie_side_by_side(hole->address, fillings);
  return fillings;
}

bool Filler::fill(MappedSpace& space, std::vector<Filling>& fillings,
                  const std::vector<Address>& cleared) {
  Bytes created = 0;
  Bytes shared = 0;
  for (const Filling& filling : fillings) {
    if (filling.from != nullptr) continue;
    (filling.tier == Tier::shared ? shared : created) += filling.size;
  }
  if (created > 0 && !memory_.limit_allows(created)) return false;
  // Memory that is not there is not taken piece by piece from others who need it.
  if (created > kLargestOwnPiece && created > driver_.memory_info().free) return false;
  const Bytes room = space.tiers() == Tiers::dedicated ? 0 : memory_.shared_room();
  if (shared > room) return false;
  Status status = create(space, fillings, room - shared);
  if (status == Status::success) status = clear(space, cleared);
  if (status == Status::success) status = map(space, fillings);
  if (status == Status::success) {
    moves_.commit(space, fillings);
    return true;
  }
  const std::string reason = driver_.last_error();
  for (Filling& filling : fillings) filling.made.reset();
  if (status == Status::out_of_memory) return false;
  throw DriverError("give memory to addresses", status, reason);
}

// What dedicated memory refuses although it seemed to have room is made of shared memory as well,
// up to `shared_room`.
Status Filler::create(const MappedSpace& space, std::vector<Filling>& fillings, Bytes shared_room) {
  for (Filling& filling : fillings) {
    if (filling.from != nullptr) continue;
    Status status = memory_.create(filling.size, filling.tier, filling.made);
    const bool may_spill = space.tiers() == Tiers::both && filling.tier == Tier::dedicated;
    if (status == Status::out_of_memory && may_spill && filling.size <= shared_room) {
      filling.tier = Tier::shared;
      shared_room -= filling.size;
      status = memory_.create(filling.size, filling.tier, filling.made);
    }
    if (status != Status::success) return status;
  }
  return Status::success;
}

// Unmaps retired addresses, neighbours at once; if that fails, what was unmapped is a hole, and the
// rest is as it was.
Status Filler::clear(MappedSpace& space, std::vector<Address> retired) {
  std::ranges::sort(retired);
  for (auto next = retired.begin(); next != retired.end();) {
    const auto first = next;
    AddressRange range{*first, 0};
    for (; next != retired.end() && *next == range.end(); ++next) {
      range.size += space.retired_at(*next).size;
    }
    const Status status = memory_.unmap(range);
    if (status != Status::success) return status;
    std::for_each(first, next, [&](Address address) { space.give_way(address); });
  }
  return Status::success;
}

Status Filler::map(MappedSpace& space, const std::vector<Filling>& fillings) {
  std::vector<AddressRange> mapped;
  Status status = Status::success;
  for (const Filling& filling : fillings) {
    if (filling.is_mapped) continue;
    const Piece& piece = filling.from != nullptr ? *filling.from : *filling.made;
    status = driver_.map(filling.address, filling.size, piece.handle);
    if (status != Status::success) break;
    mapped.push_back({filling.address, filling.size});
  }
  // Access is given to each stretch of neighbours at once.
  for (std::size_t first = 0; status == Status::success && first < mapped.size();) {
    Address end = mapped[first].address;
    std::size_t next = first;
    for (; next < mapped.size() && mapped[next].address == end; ++next) end = mapped[next].end();
    status = driver_.set_access(mapped[first].address, end - mapped[first].address);
    first = next;
  }
  if (status == Status::success) return status;
  for (const AddressRange& range : mapped) {
    if (driver_.unmap(range.address, range.size) != Status::success) space.retire(range);
  }
  return status;
}

}  // namespace plimsoll
