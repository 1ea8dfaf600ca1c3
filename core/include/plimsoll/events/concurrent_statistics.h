// Counters that many threads change at the same time, with exact sums and exact peaks of the sums.
//
// Each arena (the memory of one stream in one pool) has a shard. Only one thread at a time writes a
// shard. A thread that changes a counter must find out whether the sum over all shards exceeds the
// peak. To avoid computing the sum, each shard has a bound, and all bounds together are at most the
// peak. While no shard exceeds its bound, the sum cannot exceed the peak.
//
// A shard's room is its bound minus its value. If a shard exceeds its bound, its thread goes
// through the other shards and borrows room from each: it lowers the lender's bound and raises its
// own shard's bound by the same amount. Afterwards, both shards have about equal room, or the
// lender has none left. If the borrowed room is not enough, the thread takes `lock_`, adds up all
// shards, raises the peak if necessary, and divides the room below the peak evenly among all
// shards.
//
// Whenever no thread holds a `bound_lock_`, the sum of all bounds is at most the peak.
//
// Locks are taken in this order: `lock_`, then a shard's. A thread that holds a shard's lock waits
// for no other lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "plimsoll/base/spin_lock.h"
#include "plimsoll/base/units.h"
#include "plimsoll/events/statistics.h"

namespace plimsoll {

class ConcurrentStatistics {
 public:
  class alignas(64) Shard {  // aligned so that two never share a cache line
   public:
    explicit Shard(ConcurrentStatistics& owner) : owner_(owner) {}
    Shard(const Shard&) = delete;
    Shard& operator=(const Shard&) = delete;

    void allocate(bool small, Bytes size, Bytes requested) {
      Pool& mine = of(small);
      add(mine.allocated[kBlocks], 1);
      add(mine.allocated[kSize], size);
      add(mine.allocated[kRequested], requested);
      // The fence leaves two outcomes: this thread sees a bound that another thread has just
      // lowered, or that thread sees the new values.
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (exceeds_bound(small)) owner_.raise_peaks(*this);
    }
    // Counts a free that is complete as soon as it is requested.
    void free(bool small, Bytes size, Bytes requested) {
      Pool& mine = of(small);
      add(mine.freed[kBlocks], 1);
      add(mine.freed[kSize], size);
      add(mine.freed[kRequested], requested);
    }
    // Counts a free that has to wait: the block stays active until `complete_free`.
    void request_free(bool small, Bytes size);
    void complete_free(bool small, Bytes size, Bytes requested) {
      Pool& mine = of(small);
      add(mine.freed[kRequested], requested);
      subtract(mine.pending[kBlocks], 1);
      subtract(mine.pending[kSize], size);
    }

   private:
    friend class ConcurrentStatistics;
    using Value = std::atomic<std::int64_t>;
    enum Quantity : std::size_t { kBlocks, kSize, kRequested, kQuantities };
    // How many series a PoolStat has: `all`, `small_pool` and `large_pool`, in this order.
    static constexpr std::size_t kSeries = 3;
    using PerSeries = std::array<std::array<std::int64_t, kQuantities>, kSeries>;

    // Counters of one pool, small or large. All except `pending` only grow.
    struct alignas(64) Pool {
      std::array<Value, kQuantities> allocated{};
      // kBlocks and kSize count a free from the program's call on. kRequested counts the free only
      // once the free is complete.
      std::array<Value, kQuantities> freed{};
      std::array<Value, 2> pending{};  // kBlocks and kSize of incomplete frees

      [[nodiscard]] std::int64_t live(std::size_t quantity) const {
        return get(allocated[quantity]) - get(freed[quantity]);
      }
    };

    [[nodiscard]] static std::int64_t get(const Value& value) {
      return value.load(std::memory_order_relaxed);
    }
    static void change(Value& value, std::int64_t by) {
      value.store(get(value) + by, std::memory_order_relaxed);
    }
    static void add(Value& value, Bytes by) { change(value, static_cast<std::int64_t>(by)); }
    static void subtract(Value& value, Bytes by) { change(value, -static_cast<std::int64_t>(by)); }
    [[nodiscard]] Pool& of(bool small) { return pools_[small ? 0 : 1]; }
    [[nodiscard]] std::int64_t live(std::size_t series, std::size_t quantity) const {
      if (series > 0) return pools_[series - 1].live(quantity);
      return pools_[0].live(quantity) + pools_[1].live(quantity);
    }
    [[nodiscard]] bool exceeds_bound(std::size_t pool, std::size_t quantity) const {
      const std::int64_t mine = pools_[pool].live(quantity);
      const std::int64_t other = pools_[1 - pool].live(quantity);
      return mine > get(bound_[pool + 1][quantity]) || mine + other > get(bound_[0][quantity]);
    }
    [[nodiscard]] bool exceeds_bound(bool small) const {
      const std::size_t pool = small ? 0 : 1;
      return exceeds_bound(pool, kBlocks) || exceeds_bound(pool, kSize) ||
             exceeds_bound(pool, kRequested);
    }
    [[nodiscard]] bool exceeds_bound() const { return exceeds_bound(true) || exceeds_bound(false); }
    void look();
    [[nodiscard]] bool borrow();  // returns whether the shard now has enough room
    void borrow_of(Shard& lender);

    std::array<Pool, 2> pools_;  // small, large
    alignas(64) std::array<std::array<Value, kQuantities>, kSeries> bound_{};
    SpinLock bound_lock_;                // held while the bound changes
    std::atomic<Shard*> next_{nullptr};  // all shards form a ring
    Shard* lender_ = this;               // the shard that was last asked for room
    ConcurrentStatistics& owner_;
    PerSeries seen_{};  // the live values that `look` found last
  };

  ConcurrentStatistics() = default;
  ConcurrentStatistics(const ConcurrentStatistics&) = delete;
  ConcurrentStatistics& operator=(const ConcurrentStatistics&) = delete;

  // Adds a shard that lives as long as this object.
  Shard& add_shard();

  // Sets five members of `statistics`: allocation, active, allocated_bytes, active_bytes and
  // requested_bytes.
  void read(Statistics& statistics);
  void reset_peak();
  void reset_accumulated();

 private:
  static constexpr std::size_t kSeries = Shard::kSeries;
  static constexpr std::size_t kPools = 2;
  // How many counters `read` sets. Arrays of counters are in the order of Statistics' members.
  static constexpr std::size_t kCounters = 5;
  using Peaks = std::array<std::array<std::int64_t, kSeries>, kCounters>;
  using Totals = std::array<std::array<std::int64_t, kPools>, kCounters>;

  struct Rule;
  static const std::array<Rule, kCounters> kRules;

  class BoundsGuard;
  void raise_peaks(Shard& shard);
  void look();
  void share_out();
  [[nodiscard]] std::int64_t sum_of(std::size_t counter, std::size_t series) const;
  [[nodiscard]] Totals totals() const;

  SpinLock lock_;
  std::deque<Shard> shards_;
  Shard::PerSeries live_{};  // sums over all shards at the last `look`
  Shard::PerSeries pending_{};
  Peaks peak_{};
  Totals allocated_before_{};  // totals at the last `reset_accumulated`
  Totals freed_before_{};
};

}  // namespace plimsoll
