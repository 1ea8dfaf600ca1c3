#include "plimsoll/allocator/elastic/growth.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <deque>
#include <utility>

namespace plimsoll {
namespace {

// A planned area is mapped in parts, from the first request on that lies in one: most of an area is
// in use at the program's peak, so parts may be large.
constexpr Bytes kPlannedParts = 64;
constexpr Bytes kRoomParts = 256;  // of what may still be reserved, at most
constexpr Bytes kLargestPlannedPart = 32 * kMiB;
// The top of an area, which is in use at the peak alone, exchanges its memory with other requests
// of its stream, in granules.
constexpr Bytes kGivingPart = 64;
constexpr Bytes kMostGiving = 64 * kMiB;

// Free pieces of the arena that may serve the request.
void add_sources(const Request& request, const Arena& arena, std::uint64_t age,
                 std::vector<FreePiece>& found) {
  for (const FreePiece& free : arena.free_pieces(age)) {
    if (may_use(request.space->tiers(), free.piece->tier)) found.push_back(free);
  }
}

// The border in a planned area above which its memory serves other requests as well.
Address giving_border(const AddressRange& area) {
  const Bytes giving = std::min(area.size / kGivingPart, kMostGiving);
  return area.address + round_down(area.size - giving, kGranule);
}

// Of a planned area, as long as its plan is followed, what lies above the border alone serves
// elsewhere, and only in its own stream: others would have to know when that one is done.
void add_planned_top(const Arena& arena, std::vector<FreePiece>& found) {
  if (arena.planned_gives || arena.planned.reservations().empty()) return;
  const Address border = giving_border(arena.planned.reservations().front());
  for (const FreePiece& free : arena.planned.free_pieces(kAnyAge)) {
    if (free.piece->address >= border) found.push_back(free);
  }
}

// New memory for the holes of all parts below the border that the range lies in. The less `room`
// there is, the smaller they are: what a part leaves over may be what the last request lacks.
std::vector<Filling> planned_parts(const MappedSpace& space, const AddressRange& range,
                                   Bytes room) {
  const AddressRange area = space.reservations().front();
  const Address border = giving_border(area);
  const Bytes part =
      std::clamp(std::bit_floor(std::min(area.size / kPlannedParts, room / kRoomParts)), kGranule,
                 kLargestPlannedPart);
  const auto next_part = [&](Address address) {
    return std::min(border, area.address + round_down(address - area.address, part) + part);
  };
  std::vector<Filling> fillings;
  if (range.address >= border) return fillings;
  const Address end = next_part(std::min(range.end(), border) - 1);
  for (Address at = area.address + round_down(range.address - area.address, part); at < end;) {
    const Block* const block = space.block_at(at);
    const Address next = std::min(next_part(at), block->address + block->size);
    if (is_hole(block)) {
      fillings.push_back(Filling::anew(next - at, Tier::dedicated));
      fillings.back().address = at;
    }
    at = next;
  }
  return fillings;
}

// The pieces of the request's own arena that may serve it.
std::vector<FreePiece> own_sources(const Request& request) {
  std::vector<FreePiece> sources;
  const Arena& own = request.arena();
  if (!own.pool->may_give()) return sources;
  add_sources(request, own, kAnyAge, sources);
  if (request.space != &own.planned) add_planned_top(own, sources);
  return sources;
}

// Offers free pieces of the arena that can come back to these addresses.
void offer_returning(const Request& request, const AddressRange& range, FreePieces& pieces) {
  Block* block = nullptr;  // around the piece before, most often the next one's
  request.space->for_each_retired(range, [&](const Block& retired) {
    Piece* const piece = retired.piece;
    if (piece == nullptr || pieces.has(piece) || &piece->space->arena() != &request.arena() ||
        !may_use(request.space->tiers(), piece->tier)) {
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

}  // namespace

// Whether a plan is followed. Frees that its places wait for may be done by now; the memory of one
// that was dropped goes back to the driver.
bool Growth::update_plan(Arena& arena) {
  bool is_followed = false;
  bool has_waiting = false;
  bool is_dropped = false;
  {
    const Arena::Guard guard(arena);
    is_followed = arena.is_planned();
    if (arenas_.is_capturing()) return is_followed;
    has_waiting = !arena.waiting.is_empty();
    is_dropped = std::exchange(arena.keeps_dropped_area, false);
  }
  if (is_followed && has_waiting) work_.poll();
  if (is_dropped) release_.release_planned(arena);
  return is_followed;
}

Block* Growth::follow_plan(const Request& request) {
  Arena& arena = request.arena();
  arenas_.know_plan(arena);
  if (!update_plan(arena)) return nullptr;
  Address address = 0;
  {
    const Arena::Guard guard(arena);
    if (arena.is_planned()) address = arena.find_planned(request.size).address;
    if (address == 0) return nullptr;
    if (Block* const block = take_planned(request, address)) return block;
    if (arenas_.is_capturing() || !waits_for_stream(request.in(arena.planned), address)) {
      return nullptr;
    }
  }
  work_.mark_idle(arena, true);
  const Arena::Guard guard(arena);
  return take_planned(request, address);
}

Block* Growth::take_planned(const Request& request, Address address) {
  MappedSpace& planned = request.arena().planned;
  Block* block = planned.take_at(address, request.size);
  if (block == nullptr && fill_planned(request.in(planned), address)) {
    block = planned.take_at(address, request.size);
  }
  return block == nullptr ? nullptr : lending_.lend(block, request.requested);
}

// Maps the parts of the area that the request lies in. Above the border, and where there is not so
// much memory, what the request lacks comes from where it went, from other free memory of the
// stream, or from the driver.
bool Growth::fill_planned(const Request& request, Address address) {
  MappedSpace& space = *request.space;
  std::vector<Filling> fillings =
      planned_parts(space, {address, request.size}, memory_.dedicated_room());
  const bool fills = !fillings.empty() && filler_.fill(space, fillings);
  if (fills && address + request.size <= giving_border(space.reservations().front())) return true;
  FreePieces pieces;
  offer_returning(request, {address, request.size}, pieces);
  std::optional<Place> place = place_at(space, address, request.size, pieces);
  if (place && place->gaps.empty()) {
    fillings = Filler::revivals(space, *place, pieces);
    moves_.commit(space, fillings);
    return true;
  }
  for (const FreePiece& each : own_sources(request)) {
    if (!pieces.has(each.piece)) pieces.add(each);
  }
  std::optional<std::uint64_t> idle_age;
  if (!arenas_.is_capturing()) idle_age = request.arena().idle_age;
  place = place_at(space, address, request.size, pieces, idle_age);
  if (!place) return false;
  fillings = filler_.plan(space, *place, pieces);
  return filler_.fill(space, fillings, place->cleared);
}

// Whether the place can be had as soon as the stream is done with what was freed there. The host
// waits, so that what is done does not hang on time.
bool Growth::waits_for_stream(const Request& request, Address address) const {
  FreePieces pieces;
  const auto place = [&](std::uint64_t idle_age) {
    return place_at(*request.space, address, request.size, pieces, idle_age);
  };
  return !place(request.arena().idle_age) && place(kAnyAge);
}

// Before best fit takes other memory, which a later request of the step then lacks where it was.
Block* Growth::bring_back(const Request& request) {
  const Arena::Guard guard(request.arena());
  MappedSpace& space = *request.space;
  if (!request.arena().pool->may_give() || !space.may_come_back(request.size)) return nullptr;
  return revive(request, std::array{space.expected(request.size)[0]});
}

Block* Growth::grow(const Request& request, bool prefers_shared) {
  Block* block = try_to_grow(request);
  if (block == nullptr && arenas_.let_planned_give()) block = try_to_grow(request);
  if (block == nullptr && version_.uses_oom_pools_first()) block = take_from_oom_pools(request);
  const bool spills = spill_policy_ == SpillPolicy::spill;
  const bool may_wait = !arenas_.is_capturing();
  if (block == nullptr && may_wait &&
      (!spills || work_.may_gain_by_waiting(request.arena(), Tiers::dedicated))) {
    work_.wait_for_all();
    block = try_to_grow(request);
  }
  if (block == nullptr && !version_.uses_oom_pools_first()) block = take_from_oom_pools(request);
  if (block != nullptr || !may_use_shared(prefers_shared)) return block;

  const auto take_shared = [&] {
    Block* const shared =
        prefers_shared ? try_to_grow(request.in(request.arena().shared)) : nullptr;
    return shared == nullptr && spills ? spill(request) : shared;
  };
  block = take_shared();
  if (block == nullptr && may_wait && work_.may_gain_by_waiting(request.arena(), Tiers::both)) {
    work_.wait_for_all();
    block = take_shared();
  }
  return block;
}

// What dedicated memory is left, and shared memory for the rest.
Block* Growth::spill(const Request& request) {
  Block* const block = try_to_grow(request.in(request.arena().spilled));
  if (block != nullptr && block->shared > 0) {
    ++statistics_.num_spills;
    has_spilled_.store(true, std::memory_order_relaxed);
  }
  return block;
}

Block* Growth::take(const Request& request) {
  Block* const block = request.space->take(request.size);
  return block == nullptr ? nullptr : lending_.lend(block, request.requested);
}

Block* Growth::try_to_grow(const Request& request) {
  if (Block* const block = recall(request)) return block;
  Arena& arena = request.arena();
  if (!arenas_.is_capturing()) {
    work_.poll();
    work_.mark_givers(arena);
    if (gains_by_waiting(request)) work_.mark_idle(arena, true);
    request.space->no_split() ? release_.clear_retired(arena) : release_.bound_retired(arena);
  }
  memory_.map_lost();
  const Arena::Guard guard(arena);
  if (Block* const block = take(request)) return block;

  // Who gives memory stays locked until it is given.
  std::deque<Arena::Guard> givers;
  for (Arena& other : arenas_.all()) {
    if (&other == &arena || !other.pool->may_give() || other.idle_age == 0) continue;
    givers.emplace_back(other);
  }
  FreePieces pieces;
  for (const FreePiece& each : sources_for(request)) pieces.add(each);
  const std::optional<Place> place = place_for(request, pieces);
  if (!place) return nullptr;
  std::vector<Filling> fillings = filler_.plan(*request.space, *place, pieces);
  if (!filler_.fill(*request.space, fillings, place->cleared)) {
    if (request.space->no_split()) return nullptr;
    auto whole = filler_.plan_with_whole_pieces(*request.space, request.size, sources_for(request));
    if (!whole || !filler_.fill(*request.space, *whole)) return nullptr;
  }
  return lend_grown(request);
}

// What free memory there is at hand, or can be without a call of the driver, as it was once before.
Block* Growth::recall(const Request& request) {
  MappedSpace& space = *request.space;
  const Arena::Guard guard(request.arena());
  if (Block* const block = take(request)) return block;
  if (!request.arena().pool->may_give()) return nullptr;
  return space.small() ? revive_anywhere(request) : revive(request, space.expected(request.size));
}

// At the first of these addresses to which all memory comes back; from 0 on they are unknown.
Block* Growth::revive(const Request& request, std::span<const Address> addresses) {
  if (addresses.front() == 0) return nullptr;
  MappedSpace& space = *request.space;
  for (const Address address : addresses) {
    if (address == 0) break;
    FreePieces pieces;
    offer_returning(request, {address, request.size}, pieces);
    const std::optional<Place> place = place_at(space, address, request.size, pieces);
    if (!place || !place->gaps.empty()) continue;
    return lend_revived(request, *place, pieces);
  }
  return nullptr;
}

// Where all memory comes back, if that is anywhere: where small requests lay in the step before is
// not known.
Block* Growth::revive_anywhere(const Request& request) {
  MappedSpace& space = *request.space;
  if (space.retired_count() == 0) return nullptr;
  FreePieces pieces;
  for (const AddressRange& range : space.reservations()) offer_returning(request, range, pieces);
  const std::optional<Place> place = find_place(space, request.size, pieces);
  if (!place || !place->gaps.empty()) return nullptr;
  return lend_revived(request, *place, pieces);
}

// All memory of the place comes back to it.
Block* Growth::lend_revived(const Request& request, const Place& place, FreePieces& pieces) {
  std::vector<Filling> fillings = Filler::revivals(*request.space, place, pieces);
  moves_.commit(*request.space, fillings);
  return lend_grown(request);
}

// Of memory that was brought together for the request.
Block* Growth::lend_grown(const Request& request) {
  Block* const block = take(request);
  block->borrows = request.space->has_pieces_away();
  return block;
}

// All pieces that may serve the request. Who gives is locked.
std::vector<FreePiece> Growth::sources_for(const Request& request) const {
  const Arena& own = request.arena();
  std::vector<FreePiece> sources = own_sources(request);
  for (const Arena& other : arenas_.all()) {
    if (&other == &own || !other.pool->may_give() || other.idle_age == 0) continue;
    add_sources(request, other, other.idle_age, sources);
  }
  return sources;
}

// Whether the request stays where the program had it as soon as the stream is done with what was
// freed there, and most of its memory comes back. To map as much elsewhere takes the host longer
// than the stream takes to come up, which has work all the while; and what is displaced there would
// be mapped anew in turn.
bool Growth::gains_by_waiting(const Request& request) {
  MappedSpace& space = *request.space;
  const Arena::Guard guard(request.arena());
  const Address address = space.surely_expected(request.size);
  if (address == 0 || !request.arena().pool->may_give()) return false;
  FreePieces pieces;
  offer_returning(request, {address, request.size}, pieces);
  const auto place_at_age = [&](std::uint64_t idle_age) {
    return place_at(space, address, request.size, pieces, idle_age);
  };
  if (place_at_age(request.arena().idle_age)) return false;
  const std::optional<Place> place = place_at_age(kAnyAge);
  return place && stays(request, *place) && place->revived.size() >= kLeastToWaitFor;
}

// Where the program had the request in the step before, as long as little is to be mapped there,
// even if all is mapped elsewhere: what lies elsewhere takes the place of another, and that of the
// next, until all of a step is mapped anew.
std::optional<Place> Growth::place_for(const Request& request, const FreePieces& pieces) {
  std::optional<std::uint64_t> idle_age;
  if (!arenas_.is_capturing()) idle_age = request.arena().idle_age;
  if (const Address address = request.space->expected(request.size)[0]; address != 0) {
    std::optional<Place> place = place_at(*request.space, address, request.size, pieces, idle_age);
    if (place && stays(request, *place)) return place;
  }
  const auto find = [&] { return find_place(*request.space, request.size, pieces, idle_age); };
  std::optional<Place> place = find();
  if (place || !arenas_.add_reservation(*request.space, request.size)) return place;
  return find();
}

Block* Growth::take_from_oom_pools(const Request& request) {
  if (!request.arena().pool->is_default()) return nullptr;
  for (const auto& [id, pool] : arenas_.private_pools()) {
    if (!pool.use_on_oom || pool.is_paused) continue;
    Arena* const arena = arenas_.find(pool, request.arena().stream);
    if (arena == nullptr) continue;
    const Arena::Guard guard(*arena);
    if (Block* const block = take(request.in(arena->space_for(request.space->small())))) {
      return block;
    }
  }
  return nullptr;
}

}  // namespace plimsoll
