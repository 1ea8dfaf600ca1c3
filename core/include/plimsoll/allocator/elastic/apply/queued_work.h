// What queued work still uses: blocks whose free waits for other streams, and, for each stream, how
// far it has come.
//
// What an arena freed at its `idle_age` or before, no queued work uses:
//   arena.idle_age <= arena.marker->age <= arena.age.
// Everything here is guarded by the allocator's `mutex_`; it takes the locks of arenas itself.
#pragma once

#include "plimsoll/allocator/elastic/books/arenas.h"
#include "plimsoll/allocator/elastic/books/lending.h"
#include "plimsoll/allocator/waiting_frees.h"

namespace plimsoll {

class QueuedWork {
 public:
  QueuedWork(Driver& driver, Arenas& arenas, Lending& lending, Statistics& statistics)
      : driver_(driver), arenas_(arenas), lending_(lending), statistics_(statistics) {}

  // A block that other streams used is freed: it is taken back as soon as they are done with it.
  void wait_to_free(Block* block);
  // It is used on `stream`, maybe inside a capture.
  void note_use(Block* block, StreamId stream);

  // Takes back what waits no longer; nothing while a graph is captured, for then no stream may be
  // asked.
  void poll();
  // A freed block of the arena that is as large as a request is the first to serve it: where such a
  // free waits, it is looked whether the other streams are done with it.
  void poll_for(Arena& arena, Bytes size);
  // Finds out how far the arena's stream has come, by a marker in its work.
  void mark_idle(Arena& arena, bool wait);
  // Of each arena that may give memory to `own`.
  void mark_givers(const Arena& own);

  // Whether there is free memory that only queued work keeps the arena from using. What it freed
  // itself, it can use at once.
  [[nodiscard]] bool may_gain_by_waiting(const Arena& arena, Tiers tiers);
  void wait_for_all();
  // For the frees that wait in the pool, or, without one, in all.
  void wait_for_frees(const ElasticPool* pool);
  // Throws DriverError.
  void wait_for_device();

 private:
  Driver& driver_;
  Arenas& arenas_;
  Lending& lending_;
  Statistics& statistics_;
  WaitingFrees waiting_{driver_, [this](Block* block) {
                          const Arena::Guard guard(*block->arena);
                          lending_.complete_free(block);
                        }};
};

}  // namespace plimsoll
