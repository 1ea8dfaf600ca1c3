#include "plimsoll/allocator/elastic/apply/queued_work.h"

#include <algorithm>

namespace plimsoll {

void QueuedWork::wait_to_free(Block* block) {
  if (arenas_.is_capturing()) {
    waiting_.defer(block);
  } else {
    block->capture_uses.clear();
    waiting_.wait(block);
  }
  const Arena::Guard guard(*block->arena);
  lending_.request_free(block);
}

void QueuedWork::note_use(Block* block, StreamId stream) {
  if (arenas_.is_capturing()) waiting_.use_in_capture(block, stream);
}

void QueuedWork::poll() {
  if (!arenas_.is_capturing()) waiting_.process_events();
}

void QueuedWork::poll_for(Arena& arena, Bytes size) {
  {
    const Arena::Guard guard(arena);
    if (!arena.waiting.has(size)) return;
  }
  poll();
}

void QueuedWork::mark_idle(Arena& arena, bool wait) {
  const auto is_passed = [&] {
    const Event event = arena.marker->event;
    if ((wait ? driver_.synchronize(event) : driver_.query(event)) != Status::success) return false;
    driver_.destroy(event);
    const Arena::Guard guard(arena);
    arena.idle_age = arena.marker->age;
    arena.marker.reset();
    return true;
  };
  if (arena.marker && !is_passed()) return;
  std::uint64_t age = 0;
  {
    const Arena::Guard guard(arena);
    if (arena.idle_age == arena.age || (!arena.has_free_piece() && !arena.has_retired())) return;
    age = arena.age;
  }
  Event event = 0;
  // If the driver records no event, nothing shows when the arena's work is done. The arena then
  // gives no memory to other arenas.
  if (driver_.record(arena.stream, event) != Status::success) return;
  arena.marker = Arena::Marker{event, age};
  is_passed();
}

void QueuedWork::mark_givers(const Arena& own) {
  for (Arena& arena : arenas_.all()) {
    if (&arena == &own || arena.pool->may_give()) mark_idle(arena, false);
  }
}

bool QueuedWork::may_gain_by_waiting(const Arena& own, Tiers tiers) {
  if (!waiting_.is_empty()) return true;
  return std::ranges::any_of(arenas_.all(), [&](Arena& arena) {
    if (&arena == &own || !arena.pool->may_give()) return false;
    const Arena::Guard guard(arena);
    if (arena.idle_age == arena.age) return false;
    return std::ranges::any_of(arena.free_pieces(kAnyAge), [&](const FreePiece& free) {
      return may_use(tiers, free.piece->tier) && free.block->age_base > arena.idle_age;
    });
  });
}

void QueuedWork::wait_for_all() {
  ++statistics_.num_alloc_retries;
  wait_for_frees(nullptr);
  for (Arena& arena : arenas_.all()) {
    if (arena.pool->may_give()) mark_idle(arena, true);
  }
}

void QueuedWork::wait_for_frees(const ElasticPool* pool) {
  ++statistics_.num_sync_all_streams;
  waiting_.synchronize_events(
      [&](const Block* block) { return pool == nullptr || block->arena->pool == pool; });
}

void QueuedWork::wait_for_device() {
  if (const Status status = driver_.synchronize(); status != Status::success) {
    throw DriverError("wait for the device", status, driver_.last_error());
  }
  waiting_.process_events();
}

}  // namespace plimsoll
