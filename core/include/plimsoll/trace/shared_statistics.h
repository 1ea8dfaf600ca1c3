// Counters that many threads change at once, with exact sums and exact peaks of the sums.
//
// Each arena has a shard, which one thread at a time writes. The sum of a counter is needed only to
// find its peak, so each shard has a bound for each counter, and the bounds add up to no more than
// the peak: while no shard exceeds its own, the sum cannot exceed the peak, and nobody need look.
// A shard that does exceed its bound takes a lock, adds up all shards, raises the peak if need be,
// and spreads what is left below the peak over the bounds, by how far each shard has been.
//
//   sum over shards of bound <= peak, for each counter, while nobody holds the lock
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>

#include "plimsoll/trace/statistics.h"
#include "plimsoll/units.h"

namespace plimsoll {

class SharedStatistics {
 public:
  // What counts on the path of every request; the order is that of the members of Statistics.
  enum Counter : std::size_t {
    allocation,
    active,
    allocated_bytes,
    active_bytes,
    requested_bytes,
    kCounters,
  };

  class Shard {
   public:
    explicit Shard(SharedStatistics& owner) : owner_(owner) {}
    Shard(const Shard&) = delete;
    Shard& operator=(const Shard&) = delete;

    void allocate(bool small, Bytes size, Bytes requested) {
      add(allocation, small, 1);
      add(active, small, 1);
      add(allocated_bytes, small, size);
      add(active_bytes, small, size);
      add(requested_bytes, small, requested);
      // Either this sees a bound that was lowered meanwhile, or who lowered it sees the new values.
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (exceeds_bound(small)) owner_.raise_peaks(*this);
    }
    void request_free(bool small, Bytes size) {
      subtract(allocation, small, 1);
      subtract(allocated_bytes, small, size);
    }
    void complete_free(bool small, Bytes size, Bytes requested) {
      subtract(active, small, 1);
      subtract(active_bytes, small, size);
      subtract(requested_bytes, small, requested);
    }

   private:
    friend class SharedStatistics;
    using Value = std::atomic<std::int64_t>;
    // Of each counter: all, small pool, large pool.
    static constexpr std::size_t kSeries = 3;
    static constexpr std::size_t kValues = kCounters * kSeries;

    static void change(Value& value, std::int64_t by) {
      value.store(value.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
    }
    void add(Counter counter, bool small, Bytes amount) {
      const auto by = static_cast<std::int64_t>(amount);
      Value* const values = &current_[counter * kSeries];
      change(values[0], by);
      change(values[small ? 1 : 2], by);
      change(total_[counter * 2 + (small ? 0 : 1)], by);
    }
    [[nodiscard]] bool exceeds_bound(std::size_t value) const {
      return current_[value].load(std::memory_order_relaxed) >
             bound_[value].load(std::memory_order_relaxed);
    }
    [[nodiscard]] bool exceeds_bound(bool small) const {
      bool exceeds = false;
      for (std::size_t value = 0; value < kValues; value += kSeries) {
        exceeds |= exceeds_bound(value) | exceeds_bound(value + (small ? 1 : 2));
      }
      return exceeds;
    }
    void subtract(Counter counter, bool small, Bytes amount) {
      const auto by = -static_cast<std::int64_t>(amount);
      Value* const values = &current_[counter * kSeries];
      change(values[0], by);
      change(values[small ? 1 : 2], by);
    }

    SharedStatistics& owner_;
    std::array<Value, kValues> current_{};
    std::array<Value, kCounters * 2> total_{};  // ever added: small pool, large pool
    std::array<Value, kValues> bound_{};
    std::array<std::int64_t, kValues> furthest_{};  // the owner's: the most it saw
  };

  SharedStatistics() = default;
  SharedStatistics(const SharedStatistics&) = delete;
  SharedStatistics& operator=(const SharedStatistics&) = delete;

  // A shard, alive as long as this.
  Shard& add_shard();

  // Writes the five counters of `statistics`.
  void read(Statistics& statistics);
  void reset_peak();
  void reset_accumulated();

 private:
  using Totals = std::array<std::int64_t, kCounters * 2>;

  void raise_peaks(const Shard& shard);
  void raise_peak(std::size_t value);
  [[nodiscard]] std::int64_t sum_of(std::size_t value) const;
  [[nodiscard]] Totals totals() const;

  std::mutex mutex_;
  std::deque<Shard> shards_;
  std::array<std::int64_t, Shard::kValues> peak_{};
  Totals allocated_before_{};  // at the last reset
  Totals freed_before_{};
};

}  // namespace plimsoll
