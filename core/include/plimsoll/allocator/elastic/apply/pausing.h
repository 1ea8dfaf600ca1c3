// Takes the memory of regions off the card for a while, and brings it back. Each region has a pool
// of its own.
//
// Invariants:
// - A pool is paused <=> `paused_` has its memory.
// - A piece has no memory <=> its pool is paused and the piece is off the card.
// - The statistics' paused_bytes == the sum of the pieces without memory.
//
// Callers hold the allocator's `mutex_`. The functions here lock arenas themselves.
#pragma once

#include <map>
#include <optional>

#include "plimsoll/allocator/elastic/apply/paused_memory.h"
#include "plimsoll/allocator/elastic/apply/release.h"

namespace plimsoll {

struct RegionUse {
  Bytes reserved = 0;
  Bytes allocated = 0;
  Bytes shared_reserved = 0;
  Bytes paused = 0;  // size of the region's pieces that are off the card
};

class Pausing {
 public:
  Pausing(Driver& driver, Arenas& arenas, QueuedWork& work, DriverMemory& memory, Release& release,
          Ledger& ledger)
      : driver_(driver),
        arenas_(arenas),
        work_(work),
        memory_(memory),
        release_(release),
        ledger_(ledger) {}

  // See the functions of the same names in ElasticAllocator.
  void require_pausable(RegionId region);
  Bytes pause(RegionId region, Backup backup);
  // Does what ElasticAllocator::resume does, but throws no OutOfMemory. If the card or the limit
  // has no room, sets `refused` to the bytes that resuming would take, and returns 0.
  Bytes resume(RegionId region, std::optional<Bytes>& refused);
  [[nodiscard]] bool is_paused(RegionId region) const { return paused_.contains(region); }
  [[nodiscard]] std::optional<RegionUse> use_of(RegionId region) const;

 private:
  [[nodiscard]] ElasticPool& region_at(RegionId region);
  void require_no_capture() const;
  [[nodiscard]] std::vector<PausedPiece> pieces_to_pause(const ElasticPool& pool);
  void drop_freed_pieces(const ElasticPool& pool, PausedMemory& memory);
  void count(PausedMemory& memory);

  Driver& driver_;
  Arenas& arenas_;
  QueuedWork& work_;
  DriverMemory& memory_;
  Release& release_;
  Ledger& ledger_;
  std::map<RegionId, PausedMemory> paused_;
};

}  // namespace plimsoll
