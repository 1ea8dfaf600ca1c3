// Where each stream's memory is: the arenas, by pool and stream, and by address.
//
// Invariants: an arena's addresses are the reservations of its spaces, and the table of
// reservations knows each of them; an arena of a pool that was forgotten has no memory and serves
// the next pool. The table and the slots are read without a lock; all else is guarded by the
// allocator's `mutex_`.
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

  // --- without a lock
  // The default pool's arena of the stream, where it is known that no other is meant.
  [[nodiscard]] Arena* known(StreamId stream) {
    if (has_captures() || ThisThread::has_placement()) return nullptr;
    Arena* const arena = slot_of(stream).load(std::memory_order_acquire);
    return arena != nullptr && arena->stream == stream ? arena : nullptr;
  }
  // The arena that the address lies in; null if it lies in none.
  [[nodiscard]] Arena* around(Address address) const;
  [[nodiscard]] bool has_captures() const { return has_captures_.load(std::memory_order_acquire); }

  // --- the rest
  // The arena for a request of this thread. Throws std::invalid_argument if its region is paused.
  [[nodiscard]] Arena& for_request(StreamId stream);
  [[nodiscard]] Arena& of(ElasticPool& pool, StreamId stream);
  // Null if the pool never served the stream.
  [[nodiscard]] Arena* find(const ElasticPool& pool, StreamId stream) const;
  // Not constant: a Guard frees the block that rests in the arena.
  [[nodiscard]] std::deque<Arena>& all() const { return arenas_; }
  // Calls function(Arena&) for each arena of the pool.
  template <typename Function>
  void for_each_of(const ElasticPool& pool, Function function) const {
    for (auto entry = index_.lower_bound({&pool, 0});
         entry != index_.end() && entry->first.first == &pool; ++entry) {
      function(*entry->second);
    }
  }
  // The space has these addresses as well.
  void add_reservation(MappedSpace& space, const AddressRange& range);

  // Large requests of each stream of the default pool lie where the plan says. Throws
  // std::logic_error once there is an arena: a plan begins with the first request.
  void set_plan(std::shared_ptr<const ProgramPlan> plan);
  // Whether the arena, which makes a large request, has not been given the plan of its stream.
  [[nodiscard]] bool awaits_plan(const Arena& arena) const {
    return plan_ != nullptr && arena.pool->is_default() && !arena.is_plan_known;
  }
  // The plan of the stream whose first large request is as early as this arena's; null if there is
  // none. The arena awaits a plan, and is locked.
  [[nodiscard]] const StreamPlan* next_plan(Arena& arena);
  // Free memory where plans have it serves other requests from now on; false if it did already, or
  // there is none.
  bool let_planned_give();

  [[nodiscard]] ElasticPool& default_pool() { return default_pool_; }
  [[nodiscard]] PrivatePools<ElasticPool>& private_pools() { return private_pools_; }
  [[nodiscard]] const PrivatePools<ElasticPool>& private_pools() const { return private_pools_; }
  [[nodiscard]] bool is_capturing() const { return private_pools_.is_capturing(); }
  // `begin_capture` and `end_capture` of the private pools.
  void begin_capture(PoolId pool, Allocator::Filter filter);
  void end_capture(PoolId pool);
  // A region exists from its first use on, whatever graphs use it.
  void know_region(PoolId pool);
  // Returns whether it did: a pool with memory, or with retired addresses, stays.
  bool forget_if_unused(ElasticPool& pool);
  [[nodiscard]] Bytes free_in_private_pools() const;

 private:
  static constexpr std::size_t kSlots = 64;
  struct Reservation {
    AddressRange range;
    Arena* arena = nullptr;
  };
  using ReservationTable = std::vector<Reservation>;  // by address

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
  // A table that was replaced stays, for somebody may be reading it.
  std::vector<std::unique_ptr<const ReservationTable>> tables_;
  std::atomic<const ReservationTable*> reservations_{nullptr};
  std::atomic<bool> has_captures_{false};  // private_pools_.is_capturing()
  std::shared_ptr<const ProgramPlan> plan_;
  std::size_t planned_streams_ = 0;  // that have made a large request
};

}  // namespace plimsoll
