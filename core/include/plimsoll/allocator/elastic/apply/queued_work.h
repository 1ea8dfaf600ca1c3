// Queued work: blocks whose free waits for other streams, and how far each stream has come.
//
// An event in a stream's work, the marker, tells how far it has come. No queued work uses what an
// arena freed at its `idle_age` or before:
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

  // The program freed a block that other streams used: it is free as soon as they are done with it.
  void wait_to_free(Block* block);
  // The block is used on `stream`, maybe inside a capture.
  void note_use(Block* block, StreamId stream);

  // Frees the blocks that wait no longer; none while a graph is captured, for then no stream may be
  // asked.
  void poll();
  // Polls if a block of exactly this size waits in the arena: it is the first to serve the request.
  void poll_for(Arena& arena, Bytes size);
  // Finds out how far the arena's stream has come, by a marker in its work.
  void mark_idle(Arena& arena, bool wait);
  // The same for each arena that may give memory to `own`.
  void mark_givers(const Arena& own);

  // Whether only queued work keeps the arena from free memory of other arenas. It can use its own
  // at once.
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
