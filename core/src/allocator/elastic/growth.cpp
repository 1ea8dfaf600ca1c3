// The elastic allocator's memory: where a request finds it, in free pieces and at the driver, and
// how it goes back.

#include <algorithm>
#include <bit>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/allocator/elastic/elastic.h"

namespace plimsoll {
// --- growth ------------------------------------------------------------------------------------

Block* ElasticAllocator::grow(const Request& request, bool prefers_shared) {
  Block* block = try_to_grow(request);
  if (block == nullptr && version_.uses_oom_pools_first()) block = take_from_oom_pools(request);
  const bool spills = spill_policy_ == SpillPolicy::spill;
  const bool may_wait = !private_pools_.is_capturing();
  if (block == nullptr && may_wait && (!spills || may_gain_by_waiting(request, Tiers::dedicated))) {
    wait_for_all();
    block = try_to_grow(request);
  }
  if (block == nullptr && !version_.uses_oom_pools_first()) block = take_from_oom_pools(request);
  if (block != nullptr) return block;

  const auto take_shared = [&] {
    Block* const shared = prefers_shared ? try_to_grow(request.in(request.arena->shared)) : nullptr;
    return shared == nullptr && spills ? spill(request) : shared;
  };
  const bool has_both = prefers_shared || spills;
  block = take_shared();
  if (block == nullptr && has_both && may_wait && may_gain_by_waiting(request, Tiers::both)) {
    wait_for_all();
    block = take_shared();
  }
  if (block != nullptr) return block;
  refresh_statistics();
  fail(request.requested, request.size, request.size, request.arena->stream,
       request.arena->pool->id, free_in_private_pools(),
       has_both ? std::optional(shared_memory()) : std::nullopt);
}

void ElasticAllocator::wait_for_all() {
  ++statistics_.num_alloc_retries;
  synchronize_events(nullptr);
  for (Arena& arena : arenas_) {
    if (arena.pool->may_give()) mark_idle(arena, true);
  }
}

// What free memory there is at hand, or can be without a call of the driver, as it was once before.
Block* ElasticAllocator::recall(const Request& request) {
  Arena& arena = *request.arena;
  MappedSpace& space = *request.space;
  const Guard guard(arena.lock);
  Block* block = space.take(request.size);
  if (block == nullptr && arena.pool->may_give() && go_home(space, kEverywhere)) {
    block = space.take(request.size);
  }
  if (block != nullptr) return lend(arena, block, request.requested);
  gather(request);
  block = space.take(request.size);
  if (block != nullptr) return lend(arena, block, request.requested);
  if (!arena.pool->may_give() || space.remembered(request.size).empty()) return nullptr;
  FreePieces pieces;
  for (const FreePiece& piece : space.free_pieces(kAnyAge)) pieces.add(piece);
  const std::optional<Place> place = recall_place(space, request.size, pieces);
  if (!place) return nullptr;
  std::vector<Filling> fillings;
  for (const Address address : place->revived) {
    const FreePiece& piece = *pieces.find(space.retired().at(address).piece.handle);
    fillings.push_back({address, piece.piece, Source{&arena, &space, piece}, true});
  }
  commit(request, fillings);
  return lend_grown(request);
}

// Of memory that was brought together for the request.
Block* ElasticAllocator::lend_grown(const Request& request) {
  MappedSpace& space = *request.space;
  Block* const block = lend(*request.arena, space.take(request.size), request.requested);
  block->borrows = space.has_pieces_away();
  space.remember(request.size, block->address);
  return block;
}

Block* ElasticAllocator::try_to_grow(const Request& request) {
  if (Block* const block = recall(request)) return block;
  Arena& arena = *request.arena;
  if (!private_pools_.is_capturing()) {
    waiting_frees_.process_events();
    for (Arena& other : arenas_) {
      if (&other == &arena || other.pool->may_give()) mark_idle(other, false);
    }
    request.space->no_split() ? clear_retired(arena) : bound_retired(arena);
  }
  map_lost();
  const Guard guard(arena.lock);
  if (Block* const block = request.space->take(request.size)) {
    return lend(arena, block, request.requested);
  }

  // Who gives memory stays locked until it is given.
  std::vector<std::unique_lock<SpinLock>> givers;
  for (Arena& other : arenas_) {
    if (&other == &arena || !other.pool->may_give() || other.idle_age == 0) continue;
    givers.emplace_back(other.lock);
  }
  std::vector<Source> sources = sources_for(request);
  const std::optional<Place> place = place_for(request, sources);
  if (!place) return nullptr;
  std::erase_if(sources, [&](const Source& source) {  // it serves where it is
    const FreePiece& piece = source.piece;
    return source.space == request.space && piece.address < place->extent.end() &&
           place->extent.address < piece.address + piece.piece.size;
  });
  std::vector<Filling> fillings = revivals(*request.space, *place, sources);
  const std::vector<Filling> others = plan(request, place->gaps, sources);
  fillings.insert(fillings.end(), others.begin(), others.end());
  if (!fill(request, fillings, place->cleared)) {
    if (request.space->no_split()) return nullptr;
    sources = sources_for(request);
    std::optional<std::vector<Filling>> whole = plan_with_whole_pieces(request, sources);
    if (!whole || !fill(request, *whole)) return nullptr;
  }
  return lend_grown(request);
}

// Free pieces of these bytes go home, where nothing else was mapped: so a program that repeats
// itself finds free memory as it found it before. Whether any did.
bool ElasticAllocator::go_home(MappedSpace& space, const AddressRange& range) {
  if (!space.has_pieces_away() || range.size == 0) return false;
  Arena& arena = space.arena();
  std::vector<FreePiece> pieces;
  const auto add = [&](Block* block) {
    if (block->address >= range.end() || block->address + block->size <= range.address) return;
    for (const FreePiece& each : space.pieces_to_go_home(block, range)) pieces.push_back(each);
  };
  space.free().for_each(add, kGranule);
  if (pieces.empty()) return false;
  std::ranges::sort(pieces, {}, &FreePiece::address);
  ++arena.age;
  for (const FreePiece& each : pieces) {
    space.remove_piece(each, arena.age);
    note_in_runs(Action::segment_unmap, arena, each.address, each.piece);
  }
  for (const FreePiece& each : pieces) {
    space.revive(each.piece.home, each.piece, arena.age);
    note_in_runs(Action::segment_map, arena, each.piece.home, each.piece);
  }
  note_run();
  moves_ += pieces.size();
  return true;
}

// Where much is free, and still no block is large enough, homes are scattered: all free pieces get
// one home, side by side. That is done seldom, since each costs a mapping.
void ElasticAllocator::gather(const Request& request) {
  MappedSpace& space = *request.space;
  Arena& arena = *request.arena;
  if (space.small() || space.no_split() || space.tiers() != Tiers::dedicated ||
      private_pools_.is_capturing() || !arena.pool->may_give()) {
    return;
  }
  std::vector<FreePiece> pieces = space.free_pieces(kAnyAge);
  Bytes free = 0;
  for (const FreePiece& each : pieces) free += each.piece.size;
  if (free < kPlenty * request.size || moves_ < arena.gathers_at) return;
  std::optional<AddressRange> hole = space.hole_for(free);
  if (!hole) return;
  std::ranges::sort(pieces, {}, &FreePiece::address);
  std::vector<Filling> fillings;
  Address address = hole->address;
  for (const FreePiece& each : pieces) {
    fillings.push_back({address, each.piece, Source{&arena, &space, each}});
    address += each.piece.size;
  }
  if (map(space, fillings) != Status::success) return;
  commit({request.requested, request.size, &arena, &space}, fillings);
  for (const Filling& each : fillings) space.set_home(each.address);
  arena.gather_pause = std::max<std::uint64_t>(2 * arena.gather_pause, 8 * pieces.size());
  arena.gathers_at = moves_ + arena.gather_pause;
}

// All pieces that may serve the request, best first: the arena's own, then those of others; large
// ones first, and of equal ones those of small free blocks, which are of less use where they are.
std::vector<ElasticAllocator::Source> ElasticAllocator::sources_for(const Request& request) const {
  std::vector<Source> sources;
  const Tiers tiers = request.space->tiers();
  if (request.arena->pool->may_give()) add_sources(sources, *request.arena, kAnyAge, tiers);
  const auto own = static_cast<std::ptrdiff_t>(sources.size());
  for (const auto& [key, other] : arena_index_) {
    if (other == request.arena || !other->pool->may_give() || other->idle_age == 0) continue;
    add_sources(sources, *other, other->idle_age, tiers);
  }
  const auto is_better = [](const Source& a, const Source& b) {
    if (a.piece.piece.size != b.piece.piece.size) return a.piece.piece.size > b.piece.piece.size;
    if (a.piece.block->size != b.piece.block->size) {
      return a.piece.block->size < b.piece.block->size;
    }
    return a.piece.address > b.piece.address;
  };
  std::sort(sources.begin(), sources.begin() + own, is_better);
  std::sort(sources.begin() + own, sources.end(), is_better);
  return sources;
}

void ElasticAllocator::add_sources(std::vector<Source>& sources, Arena& arena, std::uint64_t age,
                                   Tiers tiers) {
  for (MappedSpace* const space : arena.spaces()) {
    for (const FreePiece& piece : space->free_pieces(age)) {
      if (may_use(tiers, piece.piece.tier)) sources.push_back({&arena, space, piece});
    }
  }
}

std::optional<Place> ElasticAllocator::place_for(const Request& request,
                                                 const std::vector<Source>& sources) {
  FreePieces pieces;
  for (const Source& source : sources) pieces.add(source.piece);
  std::optional<std::uint64_t> idle_age;
  if (!private_pools_.is_capturing()) idle_age = request.arena->idle_age;
  const auto find = [&] { return find_place(*request.space, request.size, pieces, idle_age); };
  std::optional<Place> place = find();
  if (place || !add_reservation(*request.arena, *request.space, request.size)) return place;
  return find();
}

// The pieces that come back to retired addresses of a place; they are no sources any more.
std::vector<ElasticAllocator::Filling> ElasticAllocator::revivals(const MappedSpace& space,
                                                                  const Place& place,
                                                                  std::vector<Source>& sources) {
  std::vector<Filling> fillings;
  for (const Address address : place.revived) {
    const Handle handle = space.retired().at(address).piece.handle;
    const auto source = std::ranges::find_if(
        sources, [&](const Source& each) { return each.piece.piece.handle == handle; });
    fillings.push_back({address, source->piece.piece, *source, true});
    sources.erase(source);
  }
  return fillings;
}

// How large the pieces are that make up so much new memory.
Bytes ElasticAllocator::piece_size(const Request& request, Bytes missing, Tier tier) const {
  if (request.space->no_split()) return missing;
  if (request.space->small()) return kGranule;
  const Bytes room = tier == Tier::dedicated ? dedicated_room() : shared_room();
  const Bytes largest = std::max(room / kRoomParts, kGranule);
  const Bytes own = std::min({kLargestOwnPiece, request.arena->reserved / kOwnPiecePart, largest});
  if (missing <= own) return missing;
  if (reserved_ < kSmallProgram) return kGranule;
  return std::clamp(std::bit_floor(std::min(reserved_ / kTiles, largest)), kGranule, kLargestTile);
}

// Fills the gaps from the sources as far as they fit, and with new pieces for the rest. A source
// that is more than a gap needs still comes before new memory, if there is room for it; but small
// requests do not pin it. Shared memory comes after all dedicated memory.
std::vector<ElasticAllocator::Filling> ElasticAllocator::plan(const Request& request,
                                                              const std::vector<Gap>& gaps,
                                                              std::vector<Source>& sources) const {
  std::vector<Filling> fillings;
  const bool is_whole = request.space->no_split();
  const Tiers tiers = request.space->tiers();
  Bytes room = tiers == Tiers::both ? round_down(dedicated_room(), kGranule) : 0;
  for (const Gap& gap : gaps) {
    const std::size_t first = fillings.size();
    Bytes left = gap.range.size;
    Address address = gap.range.address;
    for (const Tier tier : {Tier::dedicated, Tier::shared}) {
      if (!may_use(tiers, tier)) continue;
      std::erase_if(sources, [&](const Source& source) {
        const Bytes size = source.piece.piece.size;
        if (source.piece.piece.tier != tier || (is_whole ? size != left : size > left)) {
          return false;
        }
        left -= size;
        fillings.push_back({0, source.piece.piece, source});
        return true;
      });
      const auto larger = std::find_if(sources.rbegin(), sources.rend(), [&](const Source& source) {
        const Piece& piece = source.piece.piece;
        if (left == 0 || is_whole) return false;
        if (request.space->small() && piece.size > kLargestForSmall) return false;
        const Bytes more = piece.size - left;
        return piece.tier == tier && piece.size > left &&
               (more <= gap.room_above || more <= gap.room_below);
      });
      if (larger != sources.rend()) {
        const Bytes more = larger->piece.piece.size - left;
        if (more > gap.room_above) address -= more;
        fillings.push_back({0, larger->piece.piece, *larger});
        sources.erase(std::next(larger).base());
        left = 0;
      }
      if (left == 0) continue;
      for (const Bytes most = piece_size(request, left, tier); left > 0;) {
        Bytes size = std::min(left, most);
        if (tiers == Tiers::both && tier == Tier::dedicated) {
          if (is_whole ? size > room : room == 0) break;
          size = std::min(size, room);
          room -= size;
        }
        fillings.push_back({0, {size, 0, tier}, std::nullopt});
        left -= size;
      }
    }
    for (std::size_t i = first; i < fillings.size(); ++i) {
      fillings[i].address = address;
      address += fillings[i].piece.size;
    }
  }
  return fillings;
}

// Without new memory, and with pieces that may be more than the request needs.
std::optional<std::vector<ElasticAllocator::Filling>> ElasticAllocator::plan_with_whole_pieces(
    const Request& request, std::vector<Source>& sources) {
  std::vector<Source> chosen;
  Bytes total = 0;
  while (total < request.size && !sources.empty()) {
    // The smallest that suffices, else the largest.
    auto next = sources.begin();
    for (auto it = sources.begin(); it != sources.end(); ++it) {
      const Bytes size = it->piece.piece.size;
      const Bytes best = next->piece.piece.size;
      const bool suffices = total + size >= request.size;
      if (suffices ? (total + best < request.size || size < best) : size > best) next = it;
    }
    total += next->piece.piece.size;
    chosen.push_back(*next);
    sources.erase(next);
  }
  if (total < request.size) return std::nullopt;
  std::optional<AddressRange> hole = request.space->hole_for(total);
  if (!hole && add_reservation(*request.arena, *request.space, total)) {
    hole = request.space->hole_for(total);
  }
  if (!hole) return std::nullopt;
  std::vector<Filling> fillings;
  Address address = hole->address;
  for (const Source& source : chosen) {
    fillings.push_back({address, source.piece.piece, source});
    address += source.piece.piece.size;
  }
  return fillings;
}

// False, and nothing has changed, if the limit or the driver refuses.
bool ElasticAllocator::fill(const Request& request, std::vector<Filling>& fillings,
                            const std::vector<Address>& cleared) {
  Bytes created = 0;
  Bytes shared = 0;
  for (const Filling& filling : fillings) {
    if (filling.source) continue;
    (filling.piece.tier == Tier::shared ? shared : created) += filling.piece.size;
  }
  if (limit_ && created > 0 && reserved_ - shared_reserved_ + created > *limit_) return false;
  // Memory that is not there is not taken piece by piece from others who need it.
  if (created > kLargestOwnPiece && created > driver_.memory_info().free) return false;
  const Bytes room = request.space->tiers() == Tiers::dedicated ? 0 : shared_room();
  if (shared > room) return false;
  Status status = create(request, fillings, room - shared);
  if (status == Status::success) status = clear(*request.space, cleared);
  if (status == Status::success) status = map(*request.space, fillings);
  if (status == Status::success) {
    commit(request, fillings);
    return true;
  }
  const std::string reason = driver_.last_error();
  discard_created(fillings);
  if (status == Status::out_of_memory) return false;
  throw DriverError("give memory to addresses", status, reason);
}

// Of the tier that is asked for, whatever the driver would do by itself.
Status ElasticAllocator::create(Piece& piece) {
  const bool is_refused =
      piece.tier == Tier::dedicated && driver_.spills() && driver_.memory_info().free < piece.size;
  return is_refused ? Status::out_of_memory : driver_.create(piece.size, piece.tier, piece.handle);
}

// What dedicated memory refuses although it seemed to have room is made of shared memory as well,
// up to `shared_room`.
Status ElasticAllocator::create(const Request& request, std::vector<Filling>& fillings,
                                Bytes shared_room) {
  for (Filling& filling : fillings) {
    if (filling.source) continue;
    Piece& piece = filling.piece;
    Status status = create(piece);
    const bool may_spill = request.space->tiers() == Tiers::both && piece.tier == Tier::dedicated;
    if (status == Status::out_of_memory && may_spill && piece.size <= shared_room) {
      piece.tier = Tier::shared;
      shared_room -= piece.size;
      status = driver_.create(piece.size, piece.tier, piece.handle);
    }
    if (status != Status::success) return status;
  }
  return Status::success;
}

// Unmaps retired addresses; if that fails, what was unmapped is a hole, and the rest is as it was.
Status ElasticAllocator::clear(MappedSpace& space, const std::vector<Address>& retired) {
  for (const Address address : retired) {
    const Status status = unmap(address, space.retired().at(address).piece.size);
    if (status != Status::success) return status;
    space.clear(address);
  }
  return Status::success;
}

// All or nothing, of what is not mapped already.
// If that fails nothing of it stays mapped, or what the driver does not unmap is retired.
Status ElasticAllocator::map(MappedSpace& space, const std::vector<Filling>& fillings) {
  std::vector<AddressRange> mapped;
  Status status = Status::success;
  for (const Filling& filling : fillings) {
    if (filling.is_mapped) continue;
    status = driver_.map(filling.address, filling.piece.size, filling.piece.handle);
    if (status != Status::success) break;
    mapped.push_back({filling.address, filling.piece.size});
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

void ElasticAllocator::discard_created(const std::vector<Filling>& fillings) {
  for (const Filling& filling : fillings) {
    if (!filling.source && filling.piece.handle != 0) release(filling.piece.handle);
  }
}

void ElasticAllocator::commit(const Request& request, const std::vector<Filling>& fillings) {
  Arena& arena = *request.arena;
  std::vector<const Source*> sources;
  for (const Filling& filling : fillings) {
    if (filling.source) sources.push_back(&*filling.source);
  }
  std::sort(sources.begin(), sources.end(),
            [](const Source* a, const Source* b) { return a->piece.address < b->piece.address; });
  for (const Source* const source : sources) {
    Arena& from = *source->arena;
    source->space->remove_piece(source->piece, ++from.age);
    if (source->space != request.space) remove_reserved(from, *source->space, source->piece.piece);
    note_in_runs(Action::segment_unmap, from, source->piece.address, source->piece.piece);
  }
  ++arena.age;
  for (const Filling& filling : fillings) {
    Piece piece = filling.piece;
    // What another stream may use next has no way back.
    const bool is_new_here = !filling.source || filling.source->space != request.space;
    if (is_new_here) piece.home = filling.address;
    if (filling.is_mapped) {
      request.space->revive(filling.address, piece, arena.age);
    } else {
      request.space->add_piece(filling.address, piece, arena.age);
    }
    if (is_new_here) add_reserved(arena, *request.space, filling.piece);
    note_in_runs(Action::segment_map, arena, filling.address, filling.piece);
    if (filling.source) {
      ++moves_;
    } else {
      ++statistics_.num_device_alloc;
    }
  }
  note_run();
}

Block* ElasticAllocator::take_from_oom_pools(const Request& request) {
  if (!request.arena->pool->is_default()) return nullptr;
  for (const auto& [id, pool] : private_pools_) {
    if (!pool.use_on_oom || pool.is_paused) continue;
    const auto entry = arena_index_.find({&pool, request.arena->stream});
    if (entry == arena_index_.end()) continue;
    Arena& arena = *entry->second;
    const Guard guard(arena.lock);
    Block* const block = arena.space_for(request.space->small()).take(request.size);
    if (block != nullptr) return lend(arena, block, request.requested);
  }
  return nullptr;
}

// --- giving memory back to the driver ----------------------------------------------------------

// Nothing goes back while a graph is captured: a stream cannot be waited for then.
void ElasticAllocator::empty_cache(PoolId pool) {
  const std::lock_guard lock(mutex_);
  if (!private_pools_.is_capturing()) release_cached_memory(pool);
}

void ElasticAllocator::release_cached_memory(PoolId pool) {
  std::vector<ElasticPool*> emptied;
  if (pool.is_default()) {
    synchronize_events(nullptr);
    emptied.push_back(&default_pool_);
  }
  for (auto& [id, candidate] : private_pools_) {
    const bool is_meant = pool.is_default() || id == pool;
    if (!is_meant || !candidate.may_give()) continue;
    if (!pool.is_default()) synchronize_events(&candidate);
    emptied.push_back(&candidate);
  }
  if (emptied.empty()) return;
  settle();
  for (ElasticPool* const each : emptied) {
    release_free_memory(*each);
    if (!each->is_default() && !each->is_region()) forget_if_unused(*each);
  }
}

// A piece is free only when its last old mapping is gone, wherever that is.
void ElasticAllocator::settle() {
  for (const auto& [key, arena] : arena_index_) {
    mark_idle(*arena, true);
    clear_retired(*arena);
  }
  map_lost();
  if (is_scratch_mapped_) static_cast<void>(clear_scratch());
  returned_.offer();
}

void ElasticAllocator::release_free_memory(const ElasticPool& pool) {
  for_each_arena_of(pool, [this](Arena& arena) { release_free_pieces(arena); });
}

void ElasticAllocator::forget_if_unused(ElasticPool& pool) {
  const auto first = arena_index_.lower_bound({&pool, 0});
  auto last = first;
  bool is_unused = pool.reserved == 0;
  for (; last != arena_index_.end() && last->first.first == &pool; ++last) {
    is_unused &= !last->second->has_retired();
  }
  if (!is_unused) return;
  for (auto entry = first; entry != last; ++entry) {
    unused_arenas_.push_back(entry->second);
    entry->second->pool = &default_pool_;
  }
  arena_index_.erase(first, last);
  statistics_.reserved_bytes_by_private_pools.erase(pool.id);
  private_pools_.forget(pool.id);
}

void ElasticAllocator::release_free_pieces(Arena& arena) {
  const Guard guard(arena.lock);
  for (MappedSpace* const space : arena.spaces()) {
    std::vector<Address> unmapped;
    Status status = Status::success;
    for (const FreePiece& free : space->free_pieces(arena.idle_age)) {
      const Bytes size = free.piece.size;
      status = unmap(free.address, size);
      if (status != Status::success) break;
      space->remove_piece(free, arena.age);
      unmapped.push_back(free.address);
      release(free.piece.handle);
      remove_reserved(arena, *space, free.piece);
      ++statistics_.num_device_free;
      note_piece(Action::segment_unmap, arena, free.address, free.piece);
    }
    for (const Address address : unmapped) space->clear(address);
    if (status != Status::success) {
      throw DriverError("unmap memory", status, driver_.last_error());
    }
  }
}

Status ElasticAllocator::unmap(Address address, Bytes size) {
  return lost_.erase(address) > 0 ? Status::success : driver_.unmap(address, size);
}

void ElasticAllocator::release(Handle handle) {
  for (Arena& arena : arenas_) {
    for (MappedSpace* const space : arena.spaces()) space->forget_handle(handle);
  }
  returned_.add(handle);
  returned_.offer();
}

void ElasticAllocator::note_piece(Action action, const Arena& arena, Address address,
                                  const Piece& piece) {
  note(action, address, piece.size, arena.stream, arena.pool->id, 0,
       piece.tier == Tier::shared ? piece.size : 0);
}

// Pieces that are neighbours make one event, as soon as `note_run` is called.
void ElasticAllocator::note_in_runs(Action action, const Arena& arena, Address address,
                                    const Piece& piece) {
  const bool continues = run_.arena == &arena && run_.action == action &&
                         run_.address + run_.piece.size == address && run_.piece.tier == piece.tier;
  if (continues) {
    run_.piece.size += piece.size;
    return;
  }
  note_run();
  run_ = {action, &arena, address, piece};
}

void ElasticAllocator::note_run() {
  if (run_.arena != nullptr) note_piece(run_.action, *run_.arena, run_.address, run_.piece);
  run_.arena = nullptr;
}

void ElasticAllocator::add_reserved(Arena& arena, const MappedSpace& space, const Piece& piece) {
  const Bytes size = piece.size;
  if (piece.tier == Tier::shared) {
    shared_reserved_ += size;
    statistics_.shared_reserved_bytes.increase(size);
  }
  reserved_ += size;
  arena.reserved += size;
  arena.pool->reserved += size;
  statistics_.reserved_bytes.increase(space.small(), size);
  statistics_.segment.increase(space.small(), 1);
  if (!arena.pool->is_default() && version_.counts_private_pools()) {
    statistics_.reserved_bytes_by_private_pools[arena.pool->id].increase(space.small(), size);
  }
}

void ElasticAllocator::remove_reserved(Arena& arena, const MappedSpace& space, const Piece& piece) {
  const Bytes size = piece.size;
  if (piece.tier == Tier::shared) {
    shared_reserved_ -= size;
    statistics_.shared_reserved_bytes.decrease(size);
  }
  reserved_ -= size;
  arena.reserved -= size;
  arena.pool->reserved -= size;
  statistics_.reserved_bytes.decrease(space.small(), size);
  statistics_.segment.decrease(space.small(), 1);
  if (!arena.pool->is_default() && version_.counts_private_pools()) {
    statistics_.reserved_bytes_by_private_pools[arena.pool->id].decrease(space.small(), size);
  }
}

}  // namespace plimsoll
