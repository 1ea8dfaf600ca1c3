#include "plimsoll/allocator/elastic.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string>

namespace plimsoll {
namespace {

using Guard = std::lock_guard<Lock>;

}  // namespace

ElasticAllocator::ElasticAllocator(Driver& driver, const AllocatorConfig& config,
                                   TorchVersion version, int device)
    : Allocator(driver, device), version_(version) {
  if (config.per_process_memory_fraction < 1.0) {
    limit_ = static_cast<Bytes>(config.per_process_memory_fraction *
                                static_cast<double>(driver.memory_info().total));
  }
  tables_.push_back(std::make_unique<ReservationTable>());
  reservations_.store(tables_.back().get());
}

ElasticAllocator::~ElasticAllocator() = default;

// --- malloc and free ---------------------------------------------------------------------------

Block* ElasticAllocator::malloc(Bytes size, StreamId stream) {
  if (size > kMostRequest) {
    const std::lock_guard lock(mutex_);
    refresh_statistics();
    fail(size, size, size, stream, {}, free_in_private_pools());
  }
  const Bytes rounded = round_up(size, kAlignment);
  const bool is_small = rounded <= kSmallRequest;
  const auto take = [&](Arena& arena, MappedSpace& space) -> Block* {
    const Guard guard(arena.lock);
    Block* const block = space.take(rounded);
    return block == nullptr ? nullptr : lend(arena, block, size);
  };
  if (Arena* const arena = known_arena(stream)) {
    if (Block* const block = take(*arena, arena->space_for(is_small))) return block;
  }
  // A private pool's arena may serve another pool as soon as nobody holds `mutex_`.
  const std::lock_guard lock(mutex_);
  Arena& arena = find_arena(stream);
  const Request request{size, rounded, &arena, &arena.space_for(is_small)};
  const bool prefers_shared = ThisThread::placement().prefer == Tier::shared;
  if (prefers_shared) {
    if (Block* const block = take(arena, arena.shared)) return block;
    if (Block* const block = try_to_grow(request.in(arena.shared))) return block;
  }
  if (Block* const block = take(arena, *request.space)) return block;
  return grow(request, prefers_shared);
}

Block* ElasticAllocator::malloc_at(Address address, Bytes size, StreamId stream, PoolId pool) {
  const std::lock_guard lock(mutex_);
  ElasticPool& entry = pool.is_default() ? default_pool_ : private_pools_.at(pool);
  entry.require_not_paused();
  Arena& arena = arena_of(entry, stream);
  const Guard guard(arena.lock);
  if (size > 0 && size % kAlignment == 0 && address % kAlignment == 0) {
    for (MappedSpace* const space : arena.spaces()) {
      if (Block* const block = space->take_at(address, size)) return lend(arena, block, size);
    }
  }
  throw std::invalid_argument("no free block has " + std::to_string(size) + " bytes at " +
                              format_address(address));
}

Block* ElasticAllocator::lend(Arena& arena, Block* block, Bytes requested) {
  block->allocated = true;
  block->requested = requested;
  block->stream = arena.stream;
  block->context = context_;
  block->exported = false;
  if (block->space->tiers() != Tiers::dedicated) {
    block->lent = ++lent_;
    count_shared(*block, block->space->shared_bytes(block->address, block->size));
  }
  arena.live.insert(block->address, block);
  arena.shard.allocate(block->size <= kSmallRequest, block->size, requested);
  note(Action::alloc, block->address, requested, block->stream, arena.pool->id, 0, block->shared);
  return block;
}

// A free that waits for nothing.
void ElasticAllocator::free_now(Arena& arena, Block* block) {
  const Bytes shared = block->shared;
  block->allocated = false;
  if (shared != 0) count_shared(*block, 0);
  arena.shard.free(block->size <= kSmallRequest, block->size, block->requested);
  note(Action::free_requested, block->address, block->requested, block->stream, arena.pool->id,
       block->context, shared);
  note(Action::free_completed, block->address, block->requested, block->stream, arena.pool->id,
       block->context, shared);
  block->space->give_back(block, ++arena.age);
}

void ElasticAllocator::free(Block* block) {
  Arena& arena = *block->arena;
  {
    const Guard guard(arena.lock);
    if (block->stream_uses.empty()) {
      arena.live.erase(block->address);
      free_now(arena, block);
      return;
    }
  }
  free_later(arena, block);
}

// Other streams used the block.
void ElasticAllocator::free_later(Arena& arena, Block* block) {
  const std::lock_guard lock(mutex_);
  if (private_pools_.is_capturing()) {
    waiting_frees_.defer(block);
  } else {
    waiting_frees_.forget_capture_uses(block);
    waiting_frees_.wait(block);
  }
  const Guard guard(arena.lock);
  const Bytes shared = block->shared;
  block->allocated = false;
  if (shared != 0) count_shared(*block, 0);
  arena.live.erase(block->address);
  arena.shard.request_free(block->size <= kSmallRequest, block->size);
  note(Action::free_requested, block->address, block->requested, block->stream, arena.pool->id,
       block->context, shared);
}

bool ElasticAllocator::free(Address address) {
  Arena* const arena = arena_around(address);
  if (arena == nullptr) return false;
  Block* block = nullptr;
  {
    const Guard guard(arena->lock);
    Block* const* const found = arena->live.find(address);
    if (found == nullptr) return false;
    block = *found;
    if (block->stream_uses.empty()) {
      arena->live.erase(found);
      free_now(*arena, block);
      return true;
    }
  }
  free_later(*arena, block);
  return true;
}

void ElasticAllocator::record_stream(Block* block, StreamId stream) {
  if (stream == block->stream) return;
  if (has_captures_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(mutex_);
    if (private_pools_.is_capturing()) waiting_frees_.use_in_capture(block, stream);
  }
  const Guard guard(block->arena->lock);
  auto& uses = block->stream_uses;
  if (std::find(uses.begin(), uses.end(), stream) == uses.end()) uses.push_back(stream);
}

bool ElasticAllocator::record_stream(Address address, StreamId stream) {
  Arena* const arena = arena_around(address);
  if (arena == nullptr) return false;
  Block* block = nullptr;
  {
    const Guard guard(arena->lock);
    Block* const* const found = arena->live.find(address);
    if (found == nullptr) return false;
    block = *found;
  }
  record_stream(block, stream);
  return true;
}

// --- arenas and their addresses ----------------------------------------------------------------

Arena* ElasticAllocator::arena_around(Address address) const {
  const ReservationTable& table = *reservations_.load(std::memory_order_acquire);
  const auto after = std::upper_bound(table.begin(), table.end(), address,
                                      [](Address wanted, const Reservation& reservation) {
                                        return wanted < reservation.range.address;
                                      });
  if (after == table.begin()) return nullptr;
  const Reservation& reservation = *std::prev(after);
  return address < reservation.range.end() ? reservation.arena : nullptr;
}

Arena& ElasticAllocator::find_arena(StreamId stream) {
  ElasticPool* pool = private_pools_.pool_for(stream);
  if (const RegionId region = ThisThread::placement().region;
      pool == nullptr && region != kNoRegion) {
    const PoolId id = ElasticPool::id_of(region);
    if (!private_pools_.contains(id)) private_pools_.use(id);
    pool = &private_pools_.at(id);
  }
  if (pool != nullptr) {
    pool->require_not_paused();
    return arena_of(*pool, stream);
  }
  Arena& arena = arena_of(default_pool_, stream);
  slot_of(stream).store(&arena, std::memory_order_release);
  return arena;
}

Arena& ElasticAllocator::arena_of(ElasticPool& pool, StreamId stream) {
  Arena*& place = arena_index_[{&pool, stream}];
  if (place != nullptr) return *place;
  if (unused_arenas_.empty()) {
    place = &arenas_.emplace_back(stream, pool, shared_.add_shard());
  } else {
    place = unused_arenas_.back();
    unused_arenas_.pop_back();
  }
  const Guard guard(place->lock);
  place->stream = stream;
  place->pool = &pool;
  for (MappedSpace* const space : place->spaces()) space->set_no_split(pool.no_split);
  return *place;
}

// False if there are no addresses left.
bool ElasticAllocator::add_reservation(Arena& arena, MappedSpace& space, Bytes size) {
  const Bytes least = round_up(size, kGranule) + kGranule;
  const Bytes most = driver_.memory_info().total +
                     (space.tiers() == Tiers::dedicated ? 0 : driver_.shared_info().total);
  const Bytes wanted = std::max(least, round_up(most, kGranule));
  Address address = 0;
  Bytes reserved = wanted;
  Status status = driver_.reserve(reserved, address);
  if (status == Status::out_of_memory && wanted > least) {
    reserved = least;
    status = driver_.reserve(reserved, address);
  }
  if (status == Status::out_of_memory) return false;
  if (status != Status::success) {
    throw DriverError("reserve addresses", status, driver_.last_error());
  }
  space.add_reservation(address, reserved);
  auto table = std::make_unique<ReservationTable>(*reservations_.load());
  const auto place = std::find_if(
      table->begin(), table->end(),
      [&](const Reservation& reservation) { return reservation.range.address > address; });
  table->insert(place, Reservation{{address, reserved}, &arena});
  reservations_.store(table.get(), std::memory_order_release);
  tables_.push_back(std::move(table));
  return true;
}

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

Block* ElasticAllocator::try_to_grow(const Request& request) {
  Arena& arena = *request.arena;
  if (!private_pools_.is_capturing()) {
    waiting_frees_.process_events();
    for (Arena& other : arenas_) {
      if (&other == &arena || other.pool->may_give()) mark_idle(other, false);
    }
    clear_retired(arena);
  }
  const Guard guard(arena.lock);
  Block* block = request.space->take(request.size);
  if (block != nullptr) return lend(arena, block, request.requested);

  // Who gives memory stays locked until it is given.
  std::vector<std::unique_lock<Lock>> givers;
  for (Arena& other : arenas_) {
    if (&other == &arena || !other.pool->may_give() || other.idle_age == 0) continue;
    givers.emplace_back(other.lock);
  }
  std::vector<Source> sources = sources_for(request);
  const std::optional<Place> place = place_for(request);
  if (!place) return nullptr;
  std::erase_if(sources, [&](const Source& source) {  // it serves where it is
    const Block* const around = source.piece.block;
    return source.space == request.space && around->address < place->extent.end() &&
           place->extent.address < around->address + around->size;
  });
  std::vector<Filling> fillings = plan(request, place->gaps, sources);
  if (!fill(request, fillings)) {
    if (request.space->no_split()) return nullptr;
    sources = sources_for(request);
    std::optional<std::vector<Filling>> whole = plan_with_whole_pieces(request, sources);
    if (!whole || !fill(request, *whole)) return nullptr;
  }
  return lend(arena, request.space->take(request.size), request.requested);
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

std::optional<Place> ElasticAllocator::place_for(const Request& request) {
  std::optional<Place> place = request.space->place_for(request.size);
  if (place || !add_reservation(*request.arena, *request.space, request.size)) return place;
  return request.space->place_for(request.size);
}

// How large the pieces are that make up so much new memory.
Bytes ElasticAllocator::piece_size(const Request& request, Bytes missing, Tier tier) const {
  if (request.space->no_split()) return missing;
  if (request.space->small()) return kGranule;
  const Bytes room = tier == Tier::dedicated ? dedicated_room() : shared_room();
  const Bytes largest = std::max(room / kRoomParts, kGranule);
  const Bytes own = std::min({kLargestOwnPiece, request.arena->reserved / kOwnPiecePart, largest});
  if (missing <= own) return missing;
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
        if (left == 0 || is_whole || request.space->small()) return false;
        const Piece& piece = source.piece.piece;
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
bool ElasticAllocator::fill(const Request& request, std::vector<Filling>& fillings) {
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

// What dedicated memory refuses although it seemed to have room is made of shared memory as well,
// up to `shared_room`.
Status ElasticAllocator::create(const Request& request, std::vector<Filling>& fillings,
                                Bytes shared_room) {
  for (Filling& filling : fillings) {
    if (filling.source) continue;
    Piece& piece = filling.piece;
    Status status = driver_.create(piece.size, piece.tier, piece.handle);
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

// All or nothing.
// If that fails nothing of it stays mapped, or what the driver does not unmap is retired.
Status ElasticAllocator::map(MappedSpace& space, const std::vector<Filling>& fillings) {
  std::size_t mapped = 0;
  Status status = Status::success;
  for (; mapped < fillings.size(); ++mapped) {
    const Filling& filling = fillings[mapped];
    status = driver_.map(filling.address, filling.piece.size, filling.piece.handle);
    if (status != Status::success) break;
  }
  // Access is given to each stretch of neighbours at once.
  for (std::size_t first = 0; status == Status::success && first < fillings.size();) {
    Address end = fillings[first].address;
    std::size_t next = first;
    for (; next < fillings.size() && fillings[next].address == end; ++next) {
      end += fillings[next].piece.size;
    }
    status = driver_.set_access(fillings[first].address, end - fillings[first].address);
    first = next;
  }
  if (status == Status::success) return status;
  for (std::size_t i = 0; i < mapped; ++i) {
    const AddressRange range{fillings[i].address, fillings[i].piece.size};
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
    remove_reserved(from, *source->space, source->piece.piece);
    note_piece(Action::segment_unmap, from, source->piece.address, source->piece.piece);
  }
  ++arena.age;
  for (const Filling& filling : fillings) {
    request.space->add_piece(filling.address, filling.piece, arena.age);
    add_reserved(arena, *request.space, filling.piece);
    note_piece(Action::segment_map, arena, filling.address, filling.piece);
    if (filling.source) {
      ++moves_;
    } else {
      ++statistics_.num_device_alloc;
    }
  }
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

// --- what queued work still uses ---------------------------------------------------------------

void ElasticAllocator::finish_free(Block* block) {
  Arena& arena = *block->arena;
  const Guard guard(arena.lock);
  block->stream_uses.clear();
  arena.shard.complete_free(block->size <= kSmallRequest, block->size, block->requested);
  note(Action::free_completed, block->address, block->requested, block->stream, arena.pool->id,
       block->context, block->space->shared_bytes(block->address, block->size));
  block->space->give_back(block, ++arena.age);
}

void ElasticAllocator::synchronize_events(const ElasticPool* pool) {
  ++statistics_.num_sync_all_streams;
  waiting_frees_.synchronize_events(
      [&](const Block* block) { return pool == nullptr || block->arena->pool == pool; });
}

// Finds out how far the arena's stream has come, by a marker in its work.
void ElasticAllocator::mark_idle(Arena& arena, bool wait) {
  const auto is_passed = [&] {
    const Event event = arena.marker->event;
    if ((wait ? driver_.synchronize(event) : driver_.query(event)) != Status::success) return false;
    driver_.destroy(event);
    const Guard guard(arena.lock);
    arena.idle_age = arena.marker->age;
    arena.marker.reset();
    return true;
  };
  if (arena.marker && !is_passed()) return;
  std::uint64_t age = 0;
  {
    const Guard guard(arena.lock);
    if (arena.idle_age == arena.age || (!arena.has_free_piece() && !arena.has_retired())) return;
    age = arena.age;
  }
  Event event = 0;
  if (driver_.record(arena.stream, event) != Status::success) return;  // then it gives nothing
  arena.marker = Arena::Marker{event, age};
  is_passed();
}

// Unmaps what no queued work uses any more.
void ElasticAllocator::clear_retired(Arena& arena) {
  const Guard guard(arena.lock);
  for (MappedSpace* const space : arena.spaces()) {
    std::vector<Address> idle;
    for (const auto& [address, retired] : space->retired()) {
      if (retired.age <= arena.idle_age) idle.push_back(address);
    }
    for (const Address address : idle) {
      const Bytes size = space->retired().at(address).block->size;
      if (driver_.unmap(address, size) == Status::success) space->clear(address);
    }
  }
}

void ElasticAllocator::poll() {
  const std::lock_guard lock(mutex_);
  if (!private_pools_.is_capturing()) waiting_frees_.process_events();
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
  if (is_scratch_mapped_) static_cast<void>(clear_scratch());
  release_again();
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
  private_pools_.forget(pool.id);
}

void ElasticAllocator::release_free_pieces(Arena& arena) {
  const Guard guard(arena.lock);
  for (MappedSpace* const space : arena.spaces()) {
    std::vector<Address> unmapped;
    Status status = Status::success;
    for (const FreePiece& free : space->free_pieces(arena.idle_age)) {
      const Bytes size = free.piece.size;
      status = driver_.unmap(free.address, size);
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

// A handle that the driver refuses to take back is offered again with the next one.
void ElasticAllocator::release(Handle handle) {
  unreleased_.push_back(handle);
  release_again();
}

void ElasticAllocator::release_again() {
  std::erase_if(unreleased_, [&](Handle each) { return driver_.release(each) == Status::success; });
}

void ElasticAllocator::note_piece(Action action, const Arena& arena, Address address,
                                  const Piece& piece) {
  note(action, address, piece.size, arena.stream, arena.pool->id, 0,
       piece.tier == Tier::shared ? piece.size : 0);
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
  if (!arena.pool->is_default() && version_.counts_private_pools()) {
    statistics_.reserved_bytes_by_private_pools[arena.pool->id].decrease(space.small(), size);
  }
}

// --- private pools -----------------------------------------------------------------------------

void ElasticAllocator::begin_allocate_to_pool(PoolId pool, Filter filter) {
  const std::lock_guard lock(mutex_);
  private_pools_.begin_capture(pool, std::move(filter));
  has_captures_.store(true, std::memory_order_release);
}

void ElasticAllocator::end_allocate_to_pool(PoolId pool) {
  const std::lock_guard lock(mutex_);
  private_pools_.end_capture(pool);
  has_captures_.store(private_pools_.is_capturing(), std::memory_order_release);
}

void ElasticAllocator::use_pool(PoolId pool) {
  const std::lock_guard lock(mutex_);
  private_pools_.use(pool);
}

void ElasticAllocator::release_pool(PoolId pool) {
  const std::lock_guard lock(mutex_);
  private_pools_.release(pool);
}

int ElasticAllocator::pool_uses(PoolId pool) const {
  const std::lock_guard lock(mutex_);
  return private_pools_.uses(pool);
}

void ElasticAllocator::set_use_on_oom(PoolId pool, bool use) {
  const std::lock_guard lock(mutex_);
  private_pools_.at(pool).use_on_oom = use;
}

void ElasticAllocator::set_no_split(PoolId pool) {
  const std::lock_guard lock(mutex_);
  ElasticPool& entry = private_pools_.at(pool);
  entry.no_split = true;
  for_each_arena_of(entry, [](Arena& arena) {
    const Guard guard(arena.lock);
    for (MappedSpace* const space : arena.spaces()) space->set_no_split(true);
  });
}

Bytes ElasticAllocator::free_in_private_pools() const {
  Bytes bytes = 0;
  for (const auto& [key, arena] : arena_index_) {
    if (key.first->is_default() || key.first->is_region()) continue;
    const Guard guard(arena->lock);
    for (const MappedSpace* const space : std::as_const(*arena).spaces()) {
      space->free().for_each([&](const Block* block) { bytes += block->size; });
    }
  }
  return bytes;
}

// --- state as a whole --------------------------------------------------------------------------

void ElasticAllocator::set_limit(std::optional<Bytes> limit) {
  const std::lock_guard lock(mutex_);
  limit_ = limit;
}

std::optional<Bytes> ElasticAllocator::limit() const {
  const std::lock_guard lock(mutex_);
  return limit_;
}

void ElasticAllocator::refresh_statistics() const {
  shared_.read(statistics_);
  const Guard guard(shared_allocated_lock_);
  statistics_.shared_allocated_bytes = shared_allocated_;
}

// A lent block has so much in shared memory from now on.
void ElasticAllocator::count_shared(Block& block, Bytes shared) {
  const Guard guard(shared_allocated_lock_);
  if (shared > block.shared) shared_allocated_.increase(shared - block.shared);
  if (shared < block.shared) shared_allocated_.decrease(block.shared - shared);
  block.shared = shared;
}

Statistics ElasticAllocator::statistics() const {
  const std::lock_guard lock(mutex_);
  refresh_statistics();
  return statistics_;
}

void ElasticAllocator::reset_peak_statistics() {
  const std::lock_guard lock(mutex_);
  statistics_.reset_peak();
  shared_.reset_peak();
  const Guard guard(shared_allocated_lock_);
  shared_allocated_.reset_peak();
}

void ElasticAllocator::reset_accumulated_statistics() {
  const std::lock_guard lock(mutex_);
  statistics_.reset_accumulated();
  shared_.reset_accumulated();
  const Guard guard(shared_allocated_lock_);
  shared_allocated_.reset_accumulated();
}

Bytes ElasticAllocator::largest_free_block() const {
  const std::lock_guard lock(mutex_);
  Bytes largest = 0;
  for (const auto& [key, arena] : arena_index_) {
    if (!key.first->is_default()) continue;
    const Guard guard(arena->lock);
    for (const MappedSpace* const space : std::as_const(*arena).spaces()) {
      if (const Block* const block = space->free().last()) largest = std::max(largest, block->size);
    }
  }
  return largest;
}

std::optional<Location> ElasticAllocator::locate(Address address) const {
  Arena* const arena = arena_around(address);
  if (arena == nullptr) return std::nullopt;
  const Guard guard(arena->lock);
  for (const MappedSpace* const space : std::as_const(*arena).spaces()) {
    const Block* const block = space->block_at(address);
    if (block == nullptr || !block->allocated) continue;
    return Location{block->address, block->size,   block->requested, block->address,
                    block->size,    block->stream, arena->pool->id,  true};
  }
  return std::nullopt;
}

ExportedMemory ElasticAllocator::export_memory(Address address) {
  const std::lock_guard lock(mutex_);  // nothing moves meanwhile
  Arena* const arena = arena_around(address);
  ExportedMemory memory;
  if (arena != nullptr) {
    const Guard guard(arena->lock);
    Block* const* const found = arena->live.find(address);
    if (found != nullptr) {
      (*found)->space->for_each_piece(address, (*found)->size, [](Address, const Piece& piece) {
        if (piece.handle == 0) throw std::invalid_argument("memory of a paused region");
      });
      const auto& pieces = (*found)->space->pieces();
      const Address end = address + (*found)->size;
      auto piece = std::prev(pieces.upper_bound(address));
      memory.offset = address - piece->first;
      for (; piece != pieces.end() && piece->first < end; ++piece) {
        int descriptor = -1;
        const Status status = driver_.export_handle(piece->second.handle, descriptor);
        if (status != Status::success) {
          for (const auto& exported : memory.pieces) ::close(exported.descriptor);
          throw DriverError("export memory", status, driver_.last_error());
        }
        memory.pieces.push_back({descriptor, piece->second.size});
      }
      (*found)->exported = true;
      return memory;
    }
  }
  throw std::invalid_argument(format_address(address) + " is not allocated");
}

namespace {

BlockState state_of(const Block* block) {
  return block->allocated     ? BlockState::active_allocated
         : block->is_active() ? BlockState::active_pending_free
                              : BlockState::inactive;
}

}  // namespace

std::optional<Bytes> ElasticAllocator::fragments() const {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  Bytes free = 0;
  Bytes movable = 0;
  for (const auto& [key, arena] : arena_index_) {
    const Guard guard(arena->lock);
    for (const MappedSpace* const space : std::as_const(*arena).spaces()) {
      count += space->free().count();
      if (count > kMostFreeBlocks) return std::nullopt;
      space->free().for_each([&](const Block* block) { free += block->size; });
      for (const FreePiece& whole : space->free_pieces(kAnyAge)) movable += whole.piece.size;
    }
  }
  return free - movable;
}

std::vector<SegmentInfo> ElasticAllocator::segments() const {
  const std::lock_guard lock(mutex_);
  std::vector<SegmentInfo> result;
  for (const auto& [key, arena] : arena_index_) {
    const Guard guard(arena->lock);
    for (const MappedSpace* const space : std::as_const(*arena).spaces()) {
      Address end = 0;
      space->for_each_block([&](const Block* block) {
        if (!block->mapped) return;
        if (block->address != end) {
          SegmentInfo& segment = result.emplace_back();
          segment.address = block->address;
          segment.stream = arena->stream;
          segment.pool = arena->pool->id;
          segment.small = space->small();
          segment.expandable = true;
          segment.paused = arena->pool->is_paused;
        }
        end = block->address + block->size;
        const Bytes shared = space->shared_bytes(block->address, block->size);
        result.back().total_size += block->size;
        result.back().shared += shared;
        result.back().blocks.push_back({block->address, block->size, block->requested,
                                        state_of(block), block->context, shared});
      });
    }
  }
  std::sort(result.begin(), result.end(),
            [](const SegmentInfo& a, const SegmentInfo& b) { return a.address < b.address; });
  return result;
}

void ElasticAllocator::check_invariants() const {
  const std::lock_guard lock(mutex_);
  const auto require = [](bool holds, const char* invariant) {
    if (!holds) throw std::logic_error(std::string("broken invariant: ") + invariant);
  };
  Bytes reserved = 0;
  Bytes active = 0;
  Bytes allocated = 0;
  Bytes shared = 0;
  Bytes shared_allocated = 0;
  Bytes paused = 0;
  for (const auto& [key, arena] : arena_index_) {
    const Guard guard(arena->lock);
    std::size_t live = 0;
    Bytes in_arena = 0;
    for (const MappedSpace* const space : std::as_const(*arena).spaces()) {
      space->check_invariants();
      space->for_each_block([&](const Block* block) {
        require(block->arena == arena && block->space == space, "a block knows where it lies");
        require(block->size % kAlignment == 0, "blocks are multiples of 512 bytes");
        if (!block->mapped) return;
        if (block->is_active()) active += block->size;
        if (!block->allocated) return;
        allocated += block->size;
        ++live;
        Block* const* const found = arena->live.find(block->address);
        require(found != nullptr && *found == block, "a live block is found by its address");
        const Bytes in_shared = space->shared_bytes(block->address, block->size);
        require(block->shared == in_shared, "a block knows how much of it is in shared memory");
        shared_allocated += in_shared;
      });
      for (const auto& [address, piece] : space->pieces()) {
        require(may_use(space->tiers(), piece.tier), "each tier serves where it may");
        if (piece.handle == 0) {
          require(arena->pool->is_paused, "only what is paused is off the card");
          paused += piece.size;
          continue;
        }
        in_arena += piece.size;
        if (piece.tier == Tier::shared) shared += piece.size;
      }
    }
    require(live == arena->live.size(), "only live blocks are found by address");
    require(arena->idle_age <= arena->age, "a stream is not ahead of its frees");
    require(in_arena == arena->reserved, "an arena's reserved is the sum of its pieces");
    reserved += in_arena;
  }
  refresh_statistics();
  const auto equal = [](Bytes bytes, const PoolStat& stat) {
    return static_cast<std::int64_t>(bytes) == stat.all.current &&
           stat.all.current == stat.small_pool.current + stat.large_pool.current;
  };
  require(reserved == reserved_, "reserved is the sum of all pieces");
  require(shared == shared_reserved_ &&
              static_cast<std::int64_t>(shared) == statistics_.shared_reserved_bytes.current,
          "shared_reserved_bytes is right");
  require(static_cast<std::int64_t>(shared_allocated) == statistics_.shared_allocated_bytes.current,
          "shared_allocated_bytes is right");
  require(static_cast<std::int64_t>(paused) == statistics_.paused_bytes.current,
          "paused_bytes is right");
  require(equal(reserved, statistics_.reserved_bytes), "reserved_bytes is right");
  require(equal(active, statistics_.active_bytes), "active_bytes is right");
  require(equal(allocated, statistics_.allocated_bytes), "allocated_bytes is right");
}

}  // namespace plimsoll
