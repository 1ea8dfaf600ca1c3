#include "plimsoll/allocator/elastic/apply/pausing.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

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

void Pausing::require_pausable(RegionId region) {
  const ElasticPool& pool = region_at(region);
  pool.require_not_paused();
  require_no_capture();
  static_cast<void>(pieces_to_pause(pool));
}

Bytes Pausing::pause(RegionId region, Backup backup) {
  require_pausable(region);
  ElasticPool& pool = region_at(region);
  work_.wait_for_device();
  release_.clear_all_retired();
  if (!pool.is_held()) release_.release_free_memory(pool);
  PausedMemory memory(driver_, std::move(backup), pieces_to_pause(pool));
  const Status status = memory.take_off();
  const std::string reason = driver_.last_error();
  count(memory);
  const Bytes freed = memory.size_off();
  if (status == Status::success || freed > 0) {
    pool.is_paused = true;
    paused_.emplace(region, std::move(memory));
  }
  if (status != Status::success) throw DriverError("pause a region", status, reason);
  return freed;
}

Bytes Pausing::resume(RegionId region, std::optional<Bytes>& refused) {
  ElasticPool& pool = region_at(region);
  const auto entry = paused_.find(region);
  if (entry == paused_.end()) throw std::invalid_argument("the region is not paused");
  require_no_capture();
  PausedMemory& paused = entry->second;
  drop_freed_pieces(pool, paused);
  const Bytes size = paused.size_off();
  if (size > memory_.dedicated_room()) {  // release what other pools have cached, to make room
    release_.empty_cache({});
    if (size > memory_.dedicated_room()) {
      refused = size;
      return 0;
    }
  }
  Status status = Status::success;
  try {
    status = paused.put_back();
  } catch (...) {
    count(paused);
    throw;
  }
  const std::string reason = driver_.last_error();
  count(paused);
  if (status == Status::out_of_memory) {
    refused = size;
    return 0;
  }
  if (status != Status::success) throw DriverError("resume a region", status, reason);
  paused_.erase(entry);
  pool.is_paused = false;
  return size;
}

ElasticPool& Pausing::region_at(RegionId region) {
  const PoolId id = ElasticPool::id_of(region);
  if (!arenas_.private_pools().contains(id)) throw no_region();
  return arenas_.private_pools().at(id);
}

void Pausing::require_no_capture() const {
  if (arenas_.is_capturing()) {
    throw std::invalid_argument(
        "a region cannot be paused or resumed while a graph is being captured");
  }
}

std::vector<PausedPiece> Pausing::pieces_to_pause(const ElasticPool& pool) {
  std::vector<PausedPiece> pieces;
  arenas_.for_each_of(pool, [&](Arena& arena) {
    const Arena::Guard guard(arena);
    for (MappedSpace* const space : arena.spaces()) {
      space->for_each_block([](const Block* block) {
        if (block->allocated && block->exported) throw is_exported();
      });
      space->for_each_piece([&](Piece& piece) {
        if (piece.tier == Tier::dedicated) pieces.push_back({&piece});
      });
    }
  });
  std::ranges::sort(pieces, {}, [](const PausedPiece& each) { return each.piece->address; });
  return pieces;
}

// Drops the pieces that were freed while they were off the card, unless a graph remembers their
// addresses.
void Pausing::drop_freed_pieces(const ElasticPool& pool, PausedMemory& memory) {
  if (pool.is_held()) return;
  std::vector<std::unique_ptr<Piece>> freed;
  arenas_.for_each_of(pool, [&](Arena& arena) {
    const Arena::Guard guard(arena);
    for (MappedSpace* const space : arena.spaces()) {
      const std::size_t first = freed.size();
      for (const FreePiece& free : space->free_pieces(kAnyAge)) {
        if (free.piece->has_memory()) continue;
        freed.push_back(space->remove_piece(free));
        ledger_.statistics().paused_bytes.decrease(freed.back()->size);
      }
      for (std::size_t i = first; i < freed.size(); ++i) space->clear(freed[i]->address);
    }
  });
  std::set<const Piece*> dropped;
  for (const std::unique_ptr<Piece>& piece : freed) dropped.insert(piece.get());
  memory.forget(dropped);
}

// Updates the statistics and the history for each piece that has left the card, or has come back to
// it, since the last call.
void Pausing::count(PausedMemory& memory) {
  Statistics& statistics = ledger_.statistics();
  for (PausedPiece& each : memory.pieces()) {
    Piece& piece = *each.piece;
    if (piece.has_memory() == each.is_counted) continue;
    const Arena::Guard guard(piece.space->arena());
    each.is_counted = piece.has_memory();
    piece.space->set_home(piece);
    if (each.is_counted) {
      ledger_.add(piece);
      statistics.paused_bytes.decrease(piece.size);
    } else {
      ledger_.remove(piece);
      statistics.paused_bytes.increase(piece.size);
    }
    ledger_.note(each.is_counted ? Action::segment_map : Action::segment_unmap, piece);
  }
}

std::optional<RegionUse> Pausing::use_of(RegionId region) const {
  const auto pool = std::ranges::find_if(arenas_.private_pools(), [&](const auto& entry) {
    return entry.first == ElasticPool::id_of(region);
  });
  if (pool == arenas_.private_pools().end()) return std::nullopt;
  RegionUse use;
  arenas_.for_each_of(pool->second, [&](Arena& arena) {
    const Arena::Guard guard(arena);
    for (const MappedSpace* const space : arena.spaces()) {
      space->for_each_block([&](const Block* block) {
        if (block->allocated) use.allocated += block->size;
      });
      space->for_each_piece([&](const Piece& piece) {
        (piece.has_memory() ? use.reserved : use.paused) += piece.size;
        if (piece.tier == Tier::shared) use.shared_reserved += piece.size;
      });
    }
  });
  return use;
}

}  // namespace plimsoll
