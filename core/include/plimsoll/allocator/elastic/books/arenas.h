// Holds all arenas, and finds them by pool and stream, or by address.
//
// Invariants: an arena's addresses are the reservations of its spaces, and `reservations_` lists
// each of these reservations. An arena whose pool was dropped has no memory, and is reused for the
// next pool. `reservations_`, `slots_` and `has_captures_` are read without a lock; everything else
// is guarded by the allocator's `mutex_`.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "plimsoll/allocator/elastic/books/arena.h"
#include "plimsoll/allocator/private_pools.h"

namespace plimsoll {

class Arenas {
 public:
  explicit Arenas(ConcurrentStatistics& counters);
  Arenas(const Arenas&) = delete;
  Arenas& operator=(const Arenas&) = delete;

  // --- callable without a lock
  // Returns the default pool's arena of the stream. Returns null if the request may belong
  // elsewhere, because a capture runs or the thread has a placement (placement.h). Also returns
  // null if the arena is not in its slot: streams that share a slot replace each other's arena.
  [[nodiscard]] Arena* known(StreamId stream) {
    if (has_captures() || ThisThread::has_placement()) return nullptr;
    Arena* const arena = slot_of(stream).load(std::memory_order_acquire);
    return arena != nullptr && arena->stream == stream ? arena : nullptr;
  }
  // Returns the arena that contains the address; null if none does.
  [[nodiscard]] Arena* around(Address address) const;
  [[nodiscard]] bool has_captures() const { return has_captures_.load(std::memory_order_acquire); }

  // --- under the allocator's `mutex_`
  // Returns the arena for a request of this thread. Throws std::invalid_argument if its region is
  // paused.
  [[nodiscard]] Arena& for_request(StreamId stream);
  [[nodiscard]] Arena& of(ElasticPool& pool, StreamId stream);
  // Returns the arena; null if the pool never served the stream.
  [[nodiscard]] Arena* find(const ElasticPool& pool, StreamId stream) const;
  // The returned arenas are not const, because locking an arena changes it: `Arena::Guard` also
  // frees the arena's resting block.
  [[nodiscard]] std::deque<Arena>& all() const { return arenas_; }
  // Calls function(Arena&) for each arena of the pool.
  template <typename Function>
  void for_each_of(const ElasticPool& pool, Function function) const {
    for (auto entry = index_.lower_bound({&pool, 0});
         entry != index_.end() && entry->first.first == &pool; ++entry) {
      function(*entry->second);
    }
  }
  // Adds a reserved range of addresses to the space.
  void add_reservation(MappedSpace& space, const AddressRange& range);

  // Sets the plan that places large requests of the default pool. Throws std::logic_error if there
  // is an arena already, because a plan begins with the first request.
  void set_plan(std::shared_ptr<const ProgramPlan> plan);
  // Returns whether the arena still has to ask for its stream's plan, which it does at its first
  // large request.
  [[nodiscard]] bool awaits_plan(const Arena& arena) const {
    return plan_ != nullptr && arena.pool->is_default() && !arena.is_plan_known;
  }
  // Returns the plan of the arena's stream; null if there is none. The plan numbers the streams in
  // the order of their first large requests. So call this function at a stream's first large
  // request.
  [[nodiscard]] const StreamPlan* next_plan(Arena& arena);
  // Lets the free memory of all planned areas serve other requests from now on. Returns false if
  // there are no planned areas, or if all of them already do this.
  bool let_planned_give();

  [[nodiscard]] ElasticPool& default_pool() { return default_pool_; }
  [[nodiscard]] PrivatePools<ElasticPool>& private_pools() { return private_pools_; }
  [[nodiscard]] const PrivatePools<ElasticPool>& private_pools() const { return private_pools_; }
  [[nodiscard]] bool is_capturing() const { return private_pools_.is_capturing(); }
  // These two functions call the functions of the same names in `private_pools_`, and update
  // `has_captures_`.
  void begin_capture(PoolId pool, Allocator::Filter filter);
  void end_capture(PoolId pool);
  // Creates `pool` if it is a region's pool and does not exist yet. The `uses` of the new pool is
  // 1, for the region itself.
  void know_region(PoolId pool);
  // Drops the pool, unless it has memory or retired addresses. Returns true if the pool was
  // dropped.
  bool forget_if_unused(ElasticPool& pool);
  [[nodiscard]] Bytes free_in_private_pools() const;

 private:
  static constexpr std::size_t kSlots = 64;
  struct Reservation {
    AddressRange range;
    Arena* arena = nullptr;
  };
  using ReservationTable = std::vector<Reservation>;  // sorted by address

  [[nodiscard]] std::atomic<Arena*>& slot_of(StreamId stream) {
    return slots_[(stream * 0x9E3779B97F4A7C15u) >> 58];
  }

  ConcurrentStatistics& counters_;
  ElasticPool default_pool_{PoolId{}};
  PrivatePools<ElasticPool> private_pools_;
  mutable std::deque<Arena> arenas_;
  std::map<std::pair<const ElasticPool*, StreamId>, Arena*> index_;
  std::vector<Arena*> unused_;
  std::array<std::atomic<Arena*>, kSlots> slots_{};
  // Replaced tables are kept, because another thread may still be reading one.
  std::vector<std::unique_ptr<const ReservationTable>> tables_;
  std::atomic<const ReservationTable*> reservations_{nullptr};
  std::atomic<bool> has_captures_{false};  // private_pools_.is_capturing(), read without a lock
  std::shared_ptr<const ProgramPlan> plan_;
  std::size_t planned_streams_ = 0;  // streams that have made a large request
};

}  // namespace plimsoll
