// Memory leaves its addresses: old mappings are unmapped, and free pieces are released to the
// driver.
//
// Nothing is unmapped that queued work may use: a retired address is cleared, and a free piece
// released, only if its age <= arena.idle_age. The driver has a piece's memory back only when its
// last old mapping is gone as well, wherever that is; so `clear_all_retired` comes first.
// Everything here is guarded by the allocator's `mutex_`; it takes the locks of arenas itself,
// where it does not say otherwise.
#pragma once

#include <cstddef>
#include <limits>

#include "plimsoll/allocator/elastic/apply/driver_memory.h"
#include "plimsoll/allocator/elastic/apply/queued_work.h"

namespace plimsoll {

class Release {
 public:
  Release(Arenas& arenas, QueuedWork& work, DriverMemory& memory, Ledger& ledger, Driver& driver)
      : arenas_(arenas), work_(work), memory_(memory), ledger_(ledger), driver_(driver) {}

  // Unmaps all retired addresses that no queued work uses any more.
  void clear_retired(Arena& arena);
  // Unmaps the few that were retired longest ago, if the arena has too many: a program that never
  // repeats itself leaves them behind.
  void bound_retired(Arena& arena);

  // Waits for pending frees and releases the free memory of one pool; {0, 0} stands for the default
  // pool and all released pools. Throws DriverError.
  void empty_cache(PoolId pool);
  // Waits for all streams; then every piece is mapped where it serves, and nowhere else.
  void clear_all_retired();
  // Waits for the arena's stream, and releases the free memory of a planned area: the plan is
  // dropped. False if the driver failed; then some of it may be left.
  [[nodiscard]] bool release_planned(Arena& arena);
  // After `clear_all_retired`. Throws DriverError.
  void release_free_memory(const ElasticPool& pool);
  // Before a capture begins: lets the memory of released pools serve the graph, since during the
  // capture nobody can find out which work is done. The arenas of those that have no memory left
  // serve the next pools, for a program may use one pool after the other and never empty the cache.
  void tidy_unused_pools();

 private:
  static constexpr std::size_t kMostRetired = 4096;  // addresses of an arena
  static constexpr std::size_t kAtATime = 32;
  static constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

  void clear_idle(Arena& arena, std::size_t most);  // the arena is locked
  void release_free_pieces(MappedSpace& space);     // likewise
  void forget_if_unused(ElasticPool& pool);

  Arenas& arenas_;
  QueuedWork& work_;
  DriverMemory& memory_;
  Ledger& ledger_;
  Driver& driver_;
};

}  // namespace plimsoll
