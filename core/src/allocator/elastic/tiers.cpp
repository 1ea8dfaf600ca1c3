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

#include "plimsoll/allocator/elastic/elastic.h"

namespace plimsoll {
namespace {

std::invalid_argument no_region() {
  return std::invalid_argument("the region has never had any memory");
}

std::invalid_argument is_exported() {
  return std::invalid_argument(
      "the region has memory that was sent to other processes, which would keep it; delete those "
      "tensors first");
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
  map_lost();
  std::vector<Move> moves = moves_within(std::min(most, dedicated_room()));
  if (moves.empty()) return 0;
  wait_for_device();
  settle();  // what moves is mapped nowhere else
  // The books' pieces change under `mutex_` alone, so frees need not wait for copies.
  const Status status = move_to_card(moves);
  Bytes moved = 0;
  std::set<Arena*> changed;
  for (const Move& move : moves) {
    MappedSpace& space = move.arena->spilled;
    const Piece before = space.pieces().at(move.address);
    if (move.piece.handle == before.handle) continue;  // it stayed
    const Guard guard(move.arena->lock);
    note_piece(Action::segment_unmap, *move.arena, move.address, before);
    note_piece(Action::segment_map, *move.arena, move.address, move.piece);
    space.replace_piece(move.address, move.piece);
    shared_reserved_ -= before.size;
    statistics_.shared_reserved_bytes.decrease(before.size);
    moved += before.size;
    changed.insert(move.arena);
  }
  for (Arena* const arena : changed) {
    const Guard guard(arena->lock);
    arena->live.for_each([&](Address, Block* block) {
      if (block->shared == 0) return;
      count_shared(*block, block->space->shared_bytes(block->address, block->size));
    });
  }
  if (status != Status::success && status != Status::out_of_memory) {
    throw DriverError("bring memory back to the card", status, driver_.last_error());
  }
  return moved;
}

// The pieces of shared memory to move, and no more than `room` in sum: those of the blocks that
// lived longest first. What other processes have stays: they would keep the old memory.
std::vector<ElasticAllocator::Move> ElasticAllocator::moves_within(Bytes room) {
  std::vector<Move> moves;
  std::set<Address> taken;  // two blocks may have parts of a piece
  if (room < kGranule) return moves;
  for (const auto& [key, arena] : arena_index_) {
    if (arena->pool->is_paused) continue;
    const Guard guard(arena->lock);
    arena->spilled.for_each_block([&, arena = arena](const Block* block) {
      if (!block->allocated || block->shared == 0) return;
      const auto add = [&](Address address, const Piece& piece) {
        if (piece.tier != Tier::shared) return;
        if (block->exported || lost_.contains(address)) {
          taken.insert(address);
        } else {
          moves.push_back({block->lent, arena, address, piece});
        }
      };
      arena->spilled.for_each_piece(block->address, block->size, add);
    });
  }
  std::sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) {
    return std::tie(a.lent, a.address) < std::tie(b.lent, b.address);
  });
  std::erase_if(moves, [&](const Move& move) {
    if (move.piece.size > room || !taken.insert(move.address).second) return true;
    room -= move.piece.size;
    return false;
  });
  return moves;
}

// Puts new dedicated memory with the same content in the place of pieces that no queued work uses,
// and writes it to `moves`. Each is copied to addresses of nobody's, then all take their places. If
// that fails, each piece is either as it was or moved.
Status ElasticAllocator::move_to_card(std::vector<Move>& moves) {
  Status status = clear_scratch();
  if (status != Status::success) return status;
  std::vector<Piece> filled;
  Bytes size = 0;
  for (const Move& move : moves) {
    Piece piece{move.piece.size, 0, Tier::dedicated};
    status = create(piece);
    if (status != Status::success) break;
    status = driver_.map(scratch_.address + size, piece.size, piece.handle);
    if (status != Status::success) {
      release(piece.handle);
      break;
    }
    is_scratch_mapped_ = true;
    filled.push_back(piece);
    size += piece.size;
  }
  const Status created = status;  // what there is no memory for stays
  if (filled.empty()) return created;
  status = driver_.set_access(scratch_.address, size);
  Address to = scratch_.address;
  for (std::size_t i = 0; i < filled.size() && status == Status::success; ++i) {
    status = driver_.copy(to, moves[i].address, filled[i].size, 0);
    to += filled[i].size;
  }
  const Status copied = driver_.synchronize();
  if (status == Status::success) status = copied;
  const Status cleared = clear_scratch();
  if (status == Status::success) status = cleared;
  for (std::size_t i = 0; i < filled.size(); ++i) {
    if (status == Status::success) status = replace(moves[i], filled[i]);
    release(filled[i].handle);
  }
  return status == Status::success ? created : status;
}

// Maps `by` where the piece is, and changes them for each other; if that fails, both are as they
// were. A driver that does not even map again what it had mapped is asked again later.
Status ElasticAllocator::replace(Move& move, Piece& by) {
  Status status = driver_.unmap(move.address, move.piece.size);
  if (status != Status::success) return status;
  status = map_with_access(driver_, move.address, by);
  if (status == Status::success) {
    std::swap(move.piece, by);
  } else if (map_with_access(driver_, move.address, move.piece) != Status::success) {
    lost_.emplace(move.address, &move.arena->spilled);
    status = Status::failed;
  }
  return status;
}

void ElasticAllocator::map_lost() {
  std::erase_if(lost_, [this](const auto& lost) {
    const auto piece = lost.second->pieces().find(lost.first);
    return piece != lost.second->pieces().end() &&
           map_with_access(driver_, lost.first, piece->second) == Status::success;
  });
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
      space->for_each_block([](const Block* block) {
        if (block->allocated && block->exported) throw is_exported();
      });
      for (const auto& [address, piece] : space->pieces()) {
        if (piece.tier == Tier::dedicated) pieces.push_back({space, address, piece});
      }
    }
  });
  std::sort(pieces.begin(), pieces.end(),
            [](const PausedPiece& a, const PausedPiece& b) { return a.address < b.address; });
  return pieces;
}

// What is off the card and was freed meanwhile never comes back, unless a graph remembers it.
void ElasticAllocator::drop_freed_pieces(const ElasticPool& pool, PausedMemory& memory) {
  if (pool.is_held()) return;
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

Bytes ElasticAllocator::pause(RegionId region, Backup backup) {
  const std::lock_guard lock(mutex_);
  ElasticPool& pool = region_at(region);
  pool.require_not_paused();
  require_no_capture();
  wait_for_device();
  settle();
  if (!pool.is_held()) release_free_memory(pool);
  PausedMemory memory(driver_, std::move(backup), pieces_to_pause(pool));
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
  Status status = Status::success;
  try {
    status = memory.put_back();
  } catch (...) {
    adopt(memory);
    throw;
  }
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
