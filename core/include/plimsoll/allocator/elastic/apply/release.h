// Unmaps old mappings, and releases free pieces to the driver. When a piece moves, it stays mapped
// at its former addresses. This is an old mapping, and these addresses are retired
// (mapped_space.h).
//
// Queued work may still use memory whose age > arena.idle_age, so this memory stays mapped. The
// driver gets a piece's memory back only when the last old mapping of the piece, in any arena, is
// unmapped too. So call `clear_all_retired` before `release_free_memory`. Callers hold the
// allocator's `mutex_`. The functions here lock arenas themselves unless their comment says
// otherwise.
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
  // If the arena has more than kMostRetired retired addresses, unmaps a few of those that were
  // retired longest ago. A program that never repeats its steps leaves ever more retired addresses
  // behind.
  void bound_retired(Arena& arena);

  // Waits for pending frees and releases the free memory of one pool. With {0, 0} it does so for
  // the default pool and all released pools. Throws DriverError.
  void empty_cache(PoolId pool);
  // Waits for all streams and unmaps all retired addresses. After that, every piece is mapped
  // at one address only.
  void clear_all_retired();
  // Waits for the arena's stream, and then releases the free memory of the arena's `planned` space.
  // The caller has already dropped the arena's plan. Returns false if the driver failed. Then some
  // of that memory may be left.
  [[nodiscard]] bool release_planned(Arena& arena);
  // Releases the free pieces of the pool to the driver. Call `clear_all_retired` first. Throws
  // DriverError.
  void release_free_memory(const ElasticPool& pool);
  // Drops released pools that have no memory, and keeps their arenas for later pools. Otherwise,
  // the pools of a program that never empties the cache would pile up. Also finds out how far the
  // streams of all released pools have come. The next captured graph can then take the memory that
  // these streams no longer use. Call this function before the capture, because during a capture
  // the allocator cannot find out which work is done.
  void tidy_unused_pools();

 private:
  static constexpr std::size_t kMostRetired = 4096;  // retired addresses in an arena
  static constexpr std::size_t kAtATime = 32;
  static constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

  void clear_idle(Arena& arena, std::size_t most);  // the caller has locked the arena
  void release_free_pieces(MappedSpace& space);     // the caller has locked the arena
  void forget_if_unused(ElasticPool& pool);

  Arenas& arenas_;
  QueuedWork& work_;
  DriverMemory& memory_;
  Ledger& ledger_;
  Driver& driver_;
};

}  // namespace plimsoll
