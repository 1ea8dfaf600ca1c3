// The elastic allocator's second tier: spilling into shared memory and coming back, and regions
// that are taken off the card for a while.

#include <algorithm>
#include <limits>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "plimsoll/allocator/elastic.h"

namespace plimsoll {
namespace {

using Guard = std::lock_guard<Lock>;

std::invalid_argument no_region() {
  return std::invalid_argument("the region has never had any memory");
}

}  // namespace

void ElasticAllocator::set_spill_policy(SpillPolicy policy) {
  const std::lock_guard lock(mutex_);
  spill_policy_ = policy;
}

SpillPolicy ElasticAllocator::spill_policy() const {
  const std::lock_guard lock(mutex_);
  return spill_policy_;
}

void ElasticAllocator::set_shared_limit(std::optional<Bytes> limit) {
  const std::lock_guard lock(mutex_);
  shared_limit_ = limit;
}

std::optional<Bytes> ElasticAllocator::shared_limit() const {
  const std::lock_guard lock(mutex_);
  return shared_limit_;
}

Bytes ElasticAllocator::dedicated_room() const {
  const Bytes reserved = reserved_ - shared_reserved_;
  const Bytes below_limit =
      limit_ ? *limit_ - std::min(*limit_, reserved) : std::numeric_limits<Bytes>::max();
  return std::min(below_limit, driver_.memory_info().free);
}

Bytes ElasticAllocator::shared_room() const {
  const Bytes below_limit = shared_limit_
                                ? *shared_limit_ - std::min(*shared_limit_, shared_reserved_)
                                : std::numeric_limits<Bytes>::max();
  return std::min(below_limit, driver_.shared_info().free);
}

SharedMemoryReport ElasticAllocator::shared_memory() const {
  const Bytes total = driver_.shared_info().total;
  return {shared_reserved_, shared_limit_ ? std::min(*shared_limit_, total) : total, shared_room()};
}

// What dedicated memory is left, and shared memory for the rest.
Block* ElasticAllocator::spill(const Request& request) {
  Block* const block = try_to_grow(request.in(request.arena->spilled));
  if (block != nullptr && block->shared > 0) {
    ++statistics_.num_spills;
    has_spilled_.store(true, std::memory_order_relaxed);
  }
  return block;
}

// Whether there is free memory that only queued work keeps from being used. What the arena freed
// itself, it can use at once.
bool ElasticAllocator::may_gain_by_waiting(const Request& request, Tiers tiers) {
  if (!waiting_frees_.is_empty()) return true;
  return std::any_of(arenas_.begin(), arenas_.end(), [&](Arena& arena) {
    if (&arena == request.arena || !arena.pool->may_give()) return false;
    const Guard guard(arena.lock);
    if (arena.idle_age == arena.age) return false;
    std::vector<Source> sources;
    add_sources(sources, arena, kAnyAge, tiers);
    return std::any_of(sources.begin(), sources.end(), [&](const Source& source) {
      return source.piece.block->age_base > arena.idle_age;
    });
  });
}

// --- back to the card --------------------------------------------------------------------------

Bytes ElasticAllocator::rebalance(Bytes most) {
  const std::lock_guard lock(mutex_);
  if (private_pools_.is_capturing()) return 0;
  struct Candidate {
    std::uint64_t lent = 0;  // the lower, the longer the block lives
    Arena* arena = nullptr;
    Address address = 0;
  };
  std::vector<Candidate> candidates;
  for (const auto& [key, arena] : arena_index_) {
    if (arena->pool->is_paused) continue;
    const Guard guard(arena->lock);
    arena->spilled.for_each_block([&, arena = arena](const Block* block) {
      if (!block->allocated || block->shared == 0) return;
      const auto add = [&](Address address, const Piece& piece) {
        if (piece.tier == Tier::shared) candidates.push_back({block->lent, arena, address});
      };
      arena->spilled.for_each_piece(block->address, block->size, add);
    });
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tie(a.lent, a.address) < std::tie(b.lent, b.address);
  });
  if (candidates.empty() || std::min(most, dedicated_room()) < kGranule) return 0;
  wait_for_device();
  Bytes moved = 0;
  // The books' pieces change under `mutex_` alone, so frees need not wait for copies.
  for (const auto& [lent, arena, address] : candidates) {
    MappedSpace& space = arena->spilled;
    Piece piece = space.pieces().at(address);
    if (piece.tier == Tier::dedicated) continue;  // two blocks have parts of it
    if (piece.size > most - moved || piece.size > dedicated_room()) continue;
    const Status status = move_to_card(address, piece);
    if (status == Status::out_of_memory) break;
    if (status != Status::success) {
      throw DriverError("bring memory back to the card", status, driver_.last_error());
    }
    const Guard guard(arena->lock);
    note_piece(Action::segment_unmap, *arena, address, space.pieces().at(address));
    note_piece(Action::segment_map, *arena, address, piece);
    space.replace_piece(address, piece);
    shared_reserved_ -= piece.size;
    statistics_.shared_reserved_bytes.decrease(piece.size);
    moved += piece.size;
    space.for_each_lent_block(address, piece.size, [&](Block* block) {
      count_shared(*block, space.shared_bytes(block->address, block->size));
    });
  }
  return moved;
}

// Puts new dedicated memory with the same content in the place of a piece that no queued work uses.
// If that fails the piece is as it was.
Status ElasticAllocator::move_to_card(Address address, Piece& piece) {
  Status status = clear_scratch();
  if (status != Status::success) return status;
  Handle handle = 0;
  status = driver_.create(piece.size, Tier::dedicated, handle);
  if (status != Status::success) return status;
  status = driver_.map(scratch_.address, piece.size, handle);
  if (status == Status::success) {
    is_scratch_mapped_ = true;
    status = driver_.set_access(scratch_.address, piece.size);
    if (status == Status::success) status = driver_.copy(scratch_.address, address, piece.size, 0);
    if (status == Status::success) status = driver_.synchronize();
    const Status cleared = clear_scratch();
    if (status == Status::success) status = cleared;
  }
  if (status == Status::success) status = driver_.unmap(address, piece.size);
  if (status == Status::success) {
    const Piece moved{piece.size, handle, Tier::dedicated};
    status = map_with_access(driver_, address, moved);
    if (status == Status::success) {
      handle = std::exchange(piece, moved).handle;
    } else {
      static_cast<void>(map_with_access(driver_, address, piece));
    }
  }
  release(handle);
  return status;
}

// What the driver refuses to unmap there is offered again before the next use.
Status ElasticAllocator::clear_scratch() {
  if (is_scratch_mapped_) {
    const Status status = driver_.unmap(scratch_.address, scratch_.size);
    if (status != Status::success) return status;
    is_scratch_mapped_ = false;
  }
  if (scratch_.size > 0) return Status::success;
  AddressRange range{0, round_up(driver_.memory_info().total, kGranule)};
  const Status status = driver_.reserve(range.size, range.address);
  if (status == Status::success) scratch_ = range;
  return status;
}

// --- off the card, and on again ----------------------------------------------------------------

ElasticPool& ElasticAllocator::region_at(RegionId region) {
  const PoolId id = ElasticPool::id_of(region);
  if (!private_pools_.contains(id)) throw no_region();
  return private_pools_.at(id);
}

void ElasticAllocator::require_no_capture() const {
  if (private_pools_.is_capturing()) {
    throw std::invalid_argument("a region cannot be paused or resumed while a graph is captured");
  }
}

std::vector<PausedPiece> ElasticAllocator::pieces_to_pause(const ElasticPool& pool) {
  std::vector<PausedPiece> pieces;
  for_each_arena_of(pool, [&](Arena& arena) {
    const Guard guard(arena.lock);
    for (MappedSpace* const space : arena.spaces()) {
      for (const auto& [address, piece] : space->pieces()) {
        if (piece.tier == Tier::dedicated) pieces.push_back({space, address, piece});
      }
    }
  });
  std::sort(pieces.begin(), pieces.end(),
            [](const PausedPiece& a, const PausedPiece& b) { return a.address < b.address; });
  return pieces;
}

// What is off the card and was freed meanwhile never comes back.
void ElasticAllocator::drop_freed_pieces(const ElasticPool& pool, PausedMemory& memory) {
  std::set<Address> freed;
  for_each_arena_of(pool, [&](Arena& arena) {
    const Guard guard(arena.lock);
    for (MappedSpace* const space : arena.spaces()) {
      std::vector<Address> unmapped;
      for (const FreePiece& free : space->free_pieces(kAnyAge)) {
        if (free.piece.handle != 0) continue;
        space->remove_piece(free, arena.age);
        unmapped.push_back(free.address);
        statistics_.paused_bytes.decrease(free.piece.size);
      }
      for (const Address address : unmapped) space->clear(address);
      freed.insert(unmapped.begin(), unmapped.end());
    }
  });
  memory.forget(freed);
}

// Tells the spaces which pieces are on the card now, and counts them.
void ElasticAllocator::adopt(PausedMemory& memory) {
  for (const PausedPiece& each : memory.pieces()) {
    Arena& arena = each.space->arena();
    const Guard guard(arena.lock);
    const bool was_on = each.space->pieces().at(each.address).handle != 0;
    const bool is_on = each.piece.handle != 0;
    each.space->replace_piece(each.address, each.piece);
    if (was_on == is_on) continue;
    if (is_on) {
      add_reserved(arena, *each.space, each.piece);
      statistics_.paused_bytes.decrease(each.piece.size);
    } else {
      remove_reserved(arena, *each.space, each.piece);
      statistics_.paused_bytes.increase(each.piece.size);
    }
    note_piece(is_on ? Action::segment_map : Action::segment_unmap, arena, each.address,
               each.piece);
  }
  for (const Handle handle : memory.take_unreleased()) release(handle);
}

void ElasticAllocator::wait_for_device() {
  if (const Status status = driver_.synchronize(); status != Status::success) {
    throw DriverError("wait for the device", status, driver_.last_error());
  }
  waiting_frees_.process_events();
}

Bytes ElasticAllocator::pause(RegionId region, HostPool* backup) {
  const std::lock_guard lock(mutex_);
  ElasticPool& pool = region_at(region);
  pool.require_not_paused();
  require_no_capture();
  wait_for_device();
  settle();
  release_free_memory(pool);
  PausedMemory memory(driver_, backup, pieces_to_pause(pool));
  const Status status = memory.take_off();
  const std::string reason = driver_.last_error();
  adopt(memory);
  const Bytes freed = memory.size_off();
  if (status == Status::success || freed > 0) {
    pool.is_paused = true;
    paused_.emplace(region, std::move(memory));
  }
  if (status != Status::success) throw DriverError("pause a region", status, reason);
  return freed;
}

Bytes ElasticAllocator::resume(RegionId region) {
  const std::lock_guard lock(mutex_);
  ElasticPool& pool = region_at(region);
  const auto entry = paused_.find(region);
  if (entry == paused_.end()) throw std::invalid_argument("the region is not paused");
  require_no_capture();
  PausedMemory& memory = entry->second;
  drop_freed_pieces(pool, memory);
  const Bytes size = memory.size_off();
  const auto refuse = [&] {
    refresh_statistics();
    fail(size, size, size, 0, pool.id, free_in_private_pools());
  };
  if (size > dedicated_room()) {  // what is cached elsewhere makes room
    release_cached_memory({});
    if (size > dedicated_room()) refuse();
  }
  const Status status = memory.put_back();
  const std::string reason = driver_.last_error();
  adopt(memory);
  if (status == Status::out_of_memory) refuse();
  if (status != Status::success) throw DriverError("resume a region", status, reason);
  paused_.erase(entry);
  pool.is_paused = false;
  return size;
}

bool ElasticAllocator::is_paused(RegionId region) const {
  const std::lock_guard lock(mutex_);
  return paused_.contains(region);
}

void ElasticAllocator::visit_backup(RegionId region,
                                    const std::function<void(Address, Bytes)>& visit) const {
  const std::lock_guard lock(mutex_);
  const auto entry = paused_.find(region);
  if (entry == paused_.end()) throw std::invalid_argument("the region is not paused");
  entry->second.visit_backup(visit);
}

std::optional<RegionUse> ElasticAllocator::region_use(RegionId region) const {
  const std::lock_guard lock(mutex_);
  const auto pool =
      std::find_if(private_pools_.begin(), private_pools_.end(),
                   [&](const auto& entry) { return entry.first == ElasticPool::id_of(region); });
  if (pool == private_pools_.end()) return std::nullopt;
  RegionUse use;
  for_each_arena_of(pool->second, [&](Arena& arena) {
    const Guard guard(arena.lock);
    for (const MappedSpace* const space : std::as_const(arena).spaces()) {
      space->for_each_block([&](const Block* block) {
        if (block->allocated) use.allocated += block->size;
      });
      for (const auto& [address, piece] : space->pieces()) {
        (piece.handle == 0 ? use.paused : use.reserved) += piece.size;
        if (piece.tier == Tier::shared) use.shared_reserved += piece.size;
      }
    }
  });
  return use;
}

}  // namespace plimsoll
