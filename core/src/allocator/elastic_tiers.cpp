// The elastic allocator's second tier: spilling into shared memory and coming back, and regions
// that are taken off the card for a while.

#include <algorithm>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>

#include "plimsoll/allocator/elastic.h"

namespace plimsoll {
namespace {

using Guard = std::lock_guard<Lock>;

std::invalid_argument no_region() {
  return std::invalid_argument("the region has never had any memory");
}

// Moves the content of a piece that no queued work uses to a new one in dedicated memory, at the
// same address. Nothing has changed if that fails.
Status move_to_card(Driver& driver, Address address, Piece& piece) {
  Address scratch = 0;
  Status status = driver.reserve(piece.size, scratch);
  if (status != Status::success) return status;
  Handle handle = 0;
  status = driver.create(piece.size, Tier::dedicated, handle);
  const bool created = status == Status::success;
  if (created) status = driver.map(scratch, piece.size, handle);
  const bool mapped = status == Status::success;
  if (mapped) status = driver.set_access(scratch, piece.size);
  if (status == Status::success) status = driver.copy(scratch, address, piece.size, 0);
  if (status == Status::success) status = driver.synchronize();
  if (mapped) static_cast<void>(driver.unmap(scratch, piece.size));
  static_cast<void>(driver.unreserve(scratch, piece.size));
  if (status == Status::success) status = driver.unmap(address, piece.size);
  if (status == Status::success) {
    const auto put = [&](Handle from) {
      const Status mapped_here = driver.map(address, piece.size, from);
      return mapped_here == Status::success ? driver.set_access(address, piece.size) : mapped_here;
    };
    status = put(handle);
    if (status == Status::success) {
      static_cast<void>(driver.release(piece.handle));
      piece.handle = handle;
      piece.tier = Tier::dedicated;
      return status;
    }
    static_cast<void>(driver.unmap(address, piece.size));
    static_cast<void>(put(piece.handle));
  }
  if (created) static_cast<void>(driver.release(handle));
  return status;
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

// In shared memory, if there is any left.
Block* ElasticAllocator::malloc_placed(Bytes requested, Bytes size, StreamId stream) {
  Arena& arena = find_arena(stream);
  Block* block = nullptr;
  {
    const Guard guard(arena.lock);
    block = arena.shared.take(size);
    if (block != nullptr) lend(arena, block, requested);
  }
  if (block == nullptr) {
    block = try_to_grow({requested, size, &arena, &arena.shared, Tiers::shared});
  }
  if (block != nullptr) block->prefers_shared = true;
  return block;
}

// What dedicated memory is left, and shared memory for the rest.
Block* ElasticAllocator::spill(const Request& request) {
  Request spilling = request;
  spilling.space = &request.arena->shared;
  spilling.tiers = Tiers::both;
  Block* const block = try_to_grow(spilling);
  if (block == nullptr) return nullptr;
  block->prefers_shared = false;
  if (block->shared > 0) ++statistics_.num_spills;
  return block;
}

// Whether there is free memory that only queued work keeps from being used.
bool ElasticAllocator::may_gain_by_waiting() {
  if (!waiting_frees_.is_empty()) return true;
  return std::any_of(arenas_.begin(), arenas_.end(), [](Arena& arena) {
    const Guard guard(arena.lock);
    return arena.pool->may_give() && arena.idle_age < arena.age && arena.has_free_piece();
  });
}

// --- back to the card --------------------------------------------------------------------------

Bytes ElasticAllocator::rebalance(Bytes most) {
  const std::lock_guard lock(mutex_);
  if (private_pools_.is_capturing() || shared_reserved_ == 0) return 0;
  wait_for_device();
  struct Candidate {
    std::uint64_t lent = 0;  // the lower, the longer the block lives
    Arena* arena = nullptr;
    Address address = 0;
  };
  std::vector<Candidate> candidates;
  for (const auto& [key, arena] : arena_index_) {
    const Guard guard(arena->lock);
    if (arena->pool->is_paused) continue;
    arena->shared.for_each_block([&, arena = arena](const Block* block) {
      if (!block->allocated || block->shared == 0 || block->prefers_shared) return;
      arena->shared.for_each_piece(block->address, block->size,
                                   [&](Address at, const Piece& piece) {
                                     if (piece.tier == Tier::shared)
                                       candidates.push_back({block->lent, arena, at});
                                   });
    });
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tie(a.lent, a.address) < std::tie(b.lent, b.address);
  });
  Bytes moved = 0;
  for (const auto& [lent, arena, address] : candidates) {
    const Guard guard(arena->lock);
    Piece piece = arena->shared.pieces().at(address);
    if (piece.tier == Tier::dedicated) continue;  // two blocks share the piece
    if (moved + piece.size > most || piece.size > dedicated_room()) continue;
    const Status status = move_to_card(driver_, address, piece);
    if (status == Status::out_of_memory) break;
    if (status != Status::success) {
      throw DriverError("bring memory back to the card", status, driver_.last_error());
    }
    arena->shared.replace_piece(address, piece);
    shared_reserved_ -= piece.size;
    statistics_.shared_reserved_bytes.decrease(piece.size);
    moved += piece.size;
    arena->shared.for_each_lent_block(address, piece.size, [&](Block* block) {
      count_shared(*block, arena->shared.shared_bytes(block->address, block->size));
    });
  }
  return moved;
}

// --- off the card, and on again ----------------------------------------------------------------

ElasticPool& ElasticAllocator::region_at(RegionId region) {
  const PoolId id = ElasticPool::id_of(region);
  if (!private_pools_.contains(id)) throw no_region();
  return private_pools_.at(id);
}

std::vector<PausedPiece> ElasticAllocator::pieces_to_pause(const ElasticPool& pool) {
  std::vector<PausedPiece> pieces;
  for (auto entry = arena_index_.lower_bound({&pool, 0});
       entry != arena_index_.end() && entry->first.first == &pool; ++entry) {
    Arena& arena = *entry->second;
    const Guard guard(arena.lock);
    for (MappedSpace* const space : arena.spaces()) {
      for (const auto& [address, piece] : space->pieces()) {
        if (piece.tier == Tier::dedicated) pieces.push_back({space, address, piece});
      }
    }
  }
  std::sort(pieces.begin(), pieces.end(),
            [](const PausedPiece& a, const PausedPiece& b) { return a.address < b.address; });
  return pieces;
}

// Tells the spaces which pieces are on the card now, and counts them.
void ElasticAllocator::adopt(const std::vector<PausedPiece>& pieces) {
  for (const PausedPiece& each : pieces) {
    Arena& arena = each.space->arena();
    const Guard guard(arena.lock);
    const Piece& before = each.space->pieces().at(each.address);
    const bool was_on = before.handle != 0;
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
    note(is_on ? Action::segment_map : Action::segment_unmap, each.address, each.piece.size,
         arena.stream, arena.pool->id);
  }
}

void ElasticAllocator::wait_for_device() {
  if (const Status status = driver_.synchronize(); status != Status::success) {
    throw DriverError("wait for the device", status, driver_.last_error());
  }
  waiting_frees_.process_events();
}

// Free memory of the default pool and the regions, so that it can serve elsewhere.
void ElasticAllocator::release_cached_memory() {
  settle();
  release_free_memory(default_pool_);
  for (const auto& [id, pool] : private_pools_) {
    if (pool.is_region() && !pool.is_paused) release_free_memory(pool);
  }
}

Bytes ElasticAllocator::pause(RegionId region, HostPool* backup) {
  const std::lock_guard lock(mutex_);
  ElasticPool& pool = region_at(region);
  if (pool.is_paused) throw std::invalid_argument("the region is paused already");
  if (private_pools_.is_capturing()) {
    throw std::invalid_argument("no region can be paused while a graph is captured");
  }
  wait_for_device();
  settle();
  release_free_memory(pool);
  PausedMemory memory(driver_, backup, pieces_to_pause(pool));
  const Status status = memory.take_off();
  const std::string reason = driver_.last_error();
  adopt(memory.pieces());
  for (const Handle handle : memory.take_unreleased()) unreleased_.push_back(handle);
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
  PausedMemory& memory = entry->second;
  const Bytes size = memory.size_off();
  const auto refuse = [&] {
    refresh_statistics();
    fail(size, size, size, 0, pool.id, free_in_private_pools());
  };
  if (size > dedicated_room()) {  // what is cached elsewhere makes room
    release_cached_memory();
    if (size > dedicated_room()) refuse();
  }
  const Status status = memory.put_back();
  const std::string reason = driver_.last_error();
  adopt(memory.pieces());
  for (const Handle handle : memory.take_unreleased()) unreleased_.push_back(handle);
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
  const PoolId id = ElasticPool::id_of(region);
  if (!private_pools_.contains(id)) return std::nullopt;
  RegionUse use;
  for (const auto& [key, arena] : arena_index_) {
    if (key.first->id != id) continue;
    const Guard guard(arena->lock);
    for (const MappedSpace* const space : std::as_const(*arena).spaces()) {
      space->for_each_block([&](const Block* block) {
        if (block->allocated) use.allocated += block->size;
      });
      for (const auto& [address, piece] : space->pieces()) {
        (piece.handle == 0 ? use.paused : use.reserved) += piece.size;
        if (piece.tier == Tier::shared) use.shared_reserved += piece.size;
      }
    }
  }
  return use;
}

}  // namespace plimsoll
