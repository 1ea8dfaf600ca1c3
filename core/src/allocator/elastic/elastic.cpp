#include "plimsoll/allocator/elastic/elastic.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <utility>

namespace plimsoll {

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
  const auto take_from = [&](Arena& arena, MappedSpace& space) -> Block* {
    Block* const block = space.take(rounded);
    return block == nullptr ? nullptr : lend(arena, block, size);
  };
  if (Arena* const arena = known_arena(stream)) {
    const Guard guard(arena->lock);
    if (!arena->waiting.has(rounded) && !arena->borrowed) {
      if (Block* const block = take_from(*arena, arena->space_for(is_small))) return block;
    }
  }
  // A private pool's arena may serve another pool as soon as nobody holds `mutex_`.
  const std::lock_guard lock(mutex_);
  Arena& arena = find_arena(stream);
  finish_frees_of(arena, rounded);
  const auto take = [&](Arena& from, MappedSpace& space) {
    const Guard guard(from.lock);
    return take_from(from, space);
  };
  const Request request{size, rounded, &arena, &arena.space_for(is_small)};
  if (Block* const block = take_borrowed(request)) return block;
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
  block->context = log_.context();
  block->borrows = false;
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
  take_back(block);
}

// It is nobody's any more. What it borrowed goes home before the arena's next request, unless that
// one is for the same block.
void ElasticAllocator::take_back(Block* block) {
  Arena& arena = *block->arena;
  MappedSpace& space = *block->space;
  const Arena::Borrowed borrowed{&space, {block->address, block->size}};
  const bool borrows = block->borrows && arena.pool->may_give();
  space.give_back(block, ++arena.age);
  if (!borrows) return;
  if (arena.borrowed) go_home(*arena.borrowed->space, arena.borrowed->range);
  arena.borrowed = borrowed;
}

// The block that was freed just now, if it borrows and the request is for just that; else what it
// borrowed goes home.
Block* ElasticAllocator::take_borrowed(const Request& request) {
  Arena& arena = *request.arena;
  const Guard guard(arena.lock);
  if (!arena.borrowed) return nullptr;
  const auto [space, range] = *arena.borrowed;
  arena.borrowed.reset();
  if (space == request.space && range.size == request.size) {
    if (Block* const block = space->take_at(range.address, range.size)) {
      lend(arena, block, request.requested);
      block->borrows = true;
      return block;
    }
  }
  if (arena.pool->may_give()) go_home(*space, range);
  return nullptr;
}

void ElasticAllocator::free(Block* block) {
  Arena& arena = *block->arena;
  {
    std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
    if (block->borrows) lock.lock();
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
  arena.waiting.add(block->size);
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
    if (block->stream_uses.empty() && !block->borrows) {
      arena->live.erase(found);
      free_now(*arena, block);
      return true;
    }
  }
  free(block);
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

// --- by address --------------------------------------------------------------------------------

std::optional<Location> ElasticAllocator::locate(Address address) const {
  Arena* const arena = arena_around(address);
  if (arena == nullptr) return std::nullopt;
  const Guard guard(arena->lock);
  Block* const* const live = arena->live.find(address);
  const Block* block = live != nullptr ? *live : nullptr;
  for (const MappedSpace* const space : std::as_const(*arena).spaces()) {  // inside a block
    if (block == nullptr) block = space->block_at(address);
  }
  if (block == nullptr || !block->allocated) return std::nullopt;
  return Location{block->address, block->size,   block->requested, block->address,
                  block->size,    block->stream, arena->pool->id,  true};
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
    know_region(id);
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

// A region exists from its first use on, whatever graphs use it.
void ElasticAllocator::know_region(PoolId pool) {
  if (ElasticPool::is_region(pool) && !private_pools_.contains(pool)) private_pools_.use(pool);
}

Arena& ElasticAllocator::arena_of(ElasticPool& pool, StreamId stream) {
  if (const auto known = arena_index_.find({&pool, stream}); known != arena_index_.end()) {
    return *known->second;
  }
  Arena*& place = arena_index_[{&pool, stream}];
  if (unused_arenas_.empty()) {
    place = &arenas_.emplace_back(stream, pool, counters_.add_shard());
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

// --- what queued work still uses ---------------------------------------------------------------

void ElasticAllocator::finish_free(Block* block) {
  Arena& arena = *block->arena;
  const Guard guard(arena.lock);
  block->stream_uses.clear();
  arena.waiting.remove(block->size);
  arena.shard.complete_free(block->size <= kSmallRequest, block->size, block->requested);
  note(Action::free_completed, block->address, block->requested, block->stream, arena.pool->id,
       block->context, block->space->shared_bytes(block->address, block->size));
  take_back(block);
}

// A freed block of the arena that is as large as a request is the first to serve it: where such a
// free waits, it is looked whether the other streams are done with it.
void ElasticAllocator::finish_frees_of(Arena& arena, Bytes size) {
  {
    const Guard guard(arena.lock);
    if (!arena.waiting.has(size)) return;
  }
  if (!private_pools_.is_capturing()) waiting_frees_.process_events();
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

// Unmaps what no queued work uses any more, all of it.
void ElasticAllocator::clear_retired(Arena& arena) {
  const Guard guard(arena.lock);
  clear_retired(arena, std::numeric_limits<std::size_t>::max());
}

// Likewise at most so many, what was retired longest ago first; the arena is locked.
void ElasticAllocator::clear_retired(Arena& arena, std::size_t most) {
  struct Idle {
    std::uint64_t age;
    MappedSpace* space;
    Address address;
  };
  std::vector<Idle> idle;
  for (MappedSpace* const space : arena.spaces()) {
    for (const auto& [address, retired] : space->retired()) {
      if (retired.age <= arena.idle_age) idle.push_back({retired.age, space, address});
    }
  }
  if (idle.size() > most) {
    std::ranges::nth_element(idle, idle.begin() + static_cast<std::ptrdiff_t>(most), {},
                             &Idle::age);
    idle.resize(most);
  }
  for (const auto& [age, space, address] : idle) {
    const Bytes size = space->retired().at(address).piece.size;
    if (unmap(address, size) == Status::success) space->clear(address);
  }
}

// A program that never repeats itself leaves mappings behind that nothing comes back to.
void ElasticAllocator::bound_retired(Arena& arena) {
  const Guard guard(arena.lock);
  std::size_t count = 0;
  for (const MappedSpace* const space : std::as_const(arena).spaces()) {
    count += space->retired().size();
  }
  if (count > kMostRetired) clear_retired(arena, kRetiredAtATime);
}

void ElasticAllocator::poll() {
  const std::lock_guard lock(mutex_);
  if (!private_pools_.is_capturing()) waiting_frees_.process_events();
}

}  // namespace plimsoll
