#include "plimsoll/allocator/elastic/apply/release.h"

#include <algorithm>
#include <iterator>
#include <vector>

namespace plimsoll {

void Release::clear_retired(Arena& arena) {
  const Arena::Guard guard(arena);
  clear_idle(arena, kAll);
}

void Release::bound_retired(Arena& arena) {
  const Arena::Guard guard(arena);
  if (arena.retired_count() > kMostRetired) clear_idle(arena, kAtATime);
}

void Release::clear_idle(Arena& arena, std::size_t most) {
  struct Idle {
    std::uint64_t age;
    MappedSpace* space;
    AddressRange range;
  };
  std::vector<Idle> idle;
  for (MappedSpace* const space : arena.spaces()) {
    space->for_each_retired([&](const Block& retired) {
      if (retired.age_base > arena.idle_age) return;
      idle.push_back({retired.age_base, space, {retired.address, retired.size}});
    });
  }
  if (idle.size() > most) {
    std::ranges::nth_element(idle, idle.begin() + static_cast<std::ptrdiff_t>(most), {},
                             &Idle::age);
    idle.resize(most);
  }
  for (const auto& [age, space, range] : idle) {
    if (memory_.unmap(range) == Status::success) space->clear(range.address);
  }
}

void Release::empty_cache(PoolId pool) {
  std::vector<ElasticPool*> emptied;
  if (pool.is_default()) {
    work_.wait_for_frees(nullptr);
    emptied.push_back(&arenas_.default_pool());
  }
  for (auto& [id, candidate] : arenas_.private_pools()) {
    const bool is_meant = pool.is_default() || id == pool;
    if (!is_meant || !candidate.may_give()) continue;
    if (!pool.is_default()) work_.wait_for_frees(&candidate);
    emptied.push_back(&candidate);
  }
  if (emptied.empty()) return;
  clear_all_retired();
  for (ElasticPool* const each : emptied) {
    release_free_memory(*each);
    if (!each->is_default() && !each->is_region()) forget_if_unused(*each);
  }
}

void Release::clear_all_retired() {
  for (Arena& arena : arenas_.all()) {
    work_.mark_idle(arena, true);
    clear_retired(arena);
  }
  memory_.map_lost();
  memory_.offer_refused();
}

void Release::release_free_memory(const ElasticPool& pool) {
  arenas_.for_each_of(pool, [this](Arena& arena) {
    const Arena::Guard guard(arena);
    for (MappedSpace* const space : arena.spaces()) release_free_pieces(*space);
  });
}

bool Release::release_planned(Arena& arena) {
  try {
    work_.mark_idle(arena, true);
    const Arena::Guard guard(arena);
    clear_idle(arena, kAll);
    release_free_pieces(arena.planned);
  } catch (const DriverError&) {
    return false;
  }
  return true;
}

void Release::release_free_pieces(MappedSpace& space) {
  std::vector<Address> unmapped;
  Status status = Status::success;
  const std::vector<FreePiece> pieces = space.free_pieces(space.arena().idle_age);
  for (auto next = pieces.begin(); next != pieces.end();) {
    // All pieces of one free block are unmapped in one call.
    const auto first = next;
    while (next != pieces.end() && next->block == first->block) ++next;
    const Address begin = first->piece->address;
    status = memory_.unmap({begin, std::prev(next)->piece->end() - begin});
    if (status != Status::success) break;
    std::for_each(first, next, [&](const FreePiece& free) {
      const std::unique_ptr<Piece> piece = space.remove_piece(free);
      unmapped.push_back(piece->address);
      ledger_.remove(*piece);
      ++ledger_.statistics().num_device_free;
      ledger_.note(Action::segment_unmap, *piece);
    });
  }
  for (const Address address : unmapped) space.clear(address);
  if (status != Status::success) throw DriverError("unmap memory", status, driver_.last_error());
}

void Release::tidy_unused_pools() {
  std::vector<ElasticPool*> empty;
  for (auto& [id, pool] : arenas_.private_pools()) {
    if (pool.uses > 0) continue;
    arenas_.for_each_of(pool, [this](Arena& arena) {
      work_.mark_idle(arena, false);
      clear_retired(arena);
    });
    if (pool.reserved == 0) empty.push_back(&pool);
  }
  for (ElasticPool* const pool : empty) forget_if_unused(*pool);
}

void Release::forget_if_unused(ElasticPool& pool) {
  const PoolId id = pool.id;
  if (arenas_.forget_if_unused(pool)) {
    ledger_.statistics().reserved_bytes_by_private_pools.erase(id);
  }
}

}  // namespace plimsoll
