// Tracks queued work: which blocks wait for other streams before they are free, and how far each
// stream has come.
//
// An arena (arena.h) has the memory of one stream. It numbers its frees, and the number of a free
// is the age of the freed memory. An event on the stream, the marker, tells how far the stream has
// come. Queued work no longer uses memory that was freed at the arena's `idle_age` or before.
// Always true:
//   arena.idle_age <= arena.marker->age <= arena.age.
// Callers hold the allocator's `mutex_`. The functions here lock arenas themselves.
#pragma once

#include "plimsoll/allocator/elastic/books/arenas.h"
#include "plimsoll/allocator/elastic/books/lending.h"
#include "plimsoll/allocator/waiting_frees.h"

namespace plimsoll {

class QueuedWork {
 public:
  QueuedWork(Driver& driver, Arenas& arenas, Lending& lending, Statistics& statistics)
      : driver_(driver), arenas_(arenas), lending_(lending), statistics_(statistics) {}

  // Frees a block that other streams used, as soon as these streams are done with it.
  void wait_to_free(Block* block);
  // During a graph capture, notes that `stream` uses the block. Otherwise does nothing.
  void note_use(Block* block, StreamId stream);

  // Frees the blocks whose streams are done. Does nothing during a graph capture, when no event may
  // be queried.
  void poll();
  // If a block of exactly this size waits in the arena, calls `poll`, because that block would
  // serve the request best.
  void poll_for(Arena& arena, Bytes size);
  // Finds out how far the arena's stream has come. Queries the arena's marker or, if `wait` is
  // true, waits for it. Then records a new marker.
  void mark_idle(Arena& arena, bool wait);
  // Does what `mark_idle` does, without waiting, for `own` and each arena that may give memory to
  // it.
  void mark_givers(const Arena& own);

  // Returns whether the arena could get free memory of other arenas by waiting for queued work. The
  // arena can use its own free memory without waiting.
  [[nodiscard]] bool may_gain_by_waiting(const Arena& arena, Tiers tiers);
  void wait_for_all();
  // Waits for the pending frees of one pool; of all pools if `pool` is null.
  void wait_for_frees(const ElasticPool* pool);
  // Waits for all work of the device. Throws DriverError.
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
