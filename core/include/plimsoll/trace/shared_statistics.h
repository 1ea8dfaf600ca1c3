// Counters that many threads change at once, with exact sums and peaks of the sums. A peak is exact
// but for what two threads do in the same moment.
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

  class alignas(64) Shard {  // two never share a cache line
   public:
    explicit Shard(SharedStatistics& owner) : owner_(owner) {}
    Shard(const Shard&) = delete;
    Shard& operator=(const Shard&) = delete;

    void allocate(bool small, Bytes size, Bytes requested) {
      Values& mine = of(small);
      add(mine.blocks, 1);
      add(mine.bytes, size);
      add(mine.requested, requested);
      add(mine.total_blocks, 1);
      add(mine.total_bytes, size);
      add(mine.total_requested, requested);
      // Either this sees a bound that was lowered meanwhile, or who lowered it sees the new values.
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (exceeds_bound(small)) owner_.raise_peaks(*this);
    }
    // A free that waits for nothing.
    void free(bool small, Bytes size, Bytes requested) {
      Values& mine = of(small);
      subtract(mine.blocks, 1);
      subtract(mine.bytes, size);
      subtract(mine.requested, requested);
    }
    void request_free(bool small, Bytes size) {
      Values& mine = of(small);
      subtract(mine.blocks, 1);
      subtract(mine.bytes, size);
      add(mine.pending_blocks, 1);
      add(mine.pending_bytes, size);
    }
    void complete_free(bool small, Bytes size, Bytes requested) {
      Values& mine = of(small);
      subtract(mine.pending_blocks, 1);
      subtract(mine.pending_bytes, size);
      subtract(mine.requested, requested);
    }

   private:
    friend class SharedStatistics;
    using Value = std::atomic<std::int64_t>;
    // Of each counter: all, small pool, large pool.
    static constexpr std::size_t kSeries = 3;
    static constexpr std::size_t kValues = kCounters * kSeries;

    // Of one pool, small or large. What is active is live or pending.
    struct Values {
      Value blocks{0}, bytes{0};  // live
      Value requested{0};         // of all that is active
      Value pending_blocks{0}, pending_bytes{0};
      Value total_blocks{0}, total_bytes{0}, total_requested{0};  // ever allocated
      [[nodiscard]] std::int64_t current(std::size_t counter) const {
        switch (counter) {
          case allocation: return get(blocks);
          case active: return get(blocks) + get(pending_blocks);
          case allocated_bytes: return get(bytes);
          case active_bytes: return get(bytes) + get(pending_bytes);
          default: return get(requested);
        }
      }
      [[nodiscard]] std::int64_t total(std::size_t counter) const {
        switch (counter) {
          case allocation:
          case active: return get(total_blocks);
          case allocated_bytes:
          case active_bytes: return get(total_bytes);
          default: return get(total_requested);
        }
      }
    };

    [[nodiscard]] static std::int64_t get(const Value& value) {
      return value.load(std::memory_order_relaxed);
    }
    static void add(Value& value, Bytes by) {
      value.store(get(value) + static_cast<std::int64_t>(by), std::memory_order_relaxed);
    }
    static void subtract(Value& value, Bytes by) {
      value.store(get(value) - static_cast<std::int64_t>(by), std::memory_order_relaxed);
    }
    [[nodiscard]] Values& of(bool small) { return values_[small ? 0 : 1]; }
    [[nodiscard]] std::int64_t current(std::size_t value) const {
      const std::size_t counter = value / kSeries;
      const std::size_t series = value % kSeries;
      if (series != 0) return values_[series - 1].current(counter);
      return values_[0].current(counter) + values_[1].current(counter);
    }
    [[nodiscard]] std::int64_t total(std::size_t i) const { return values_[i % 2].total(i / 2); }
    [[nodiscard]] bool exceeds_bound(std::size_t value) const {
      return current(value) > get(bound_[value]);
    }
    [[nodiscard]] bool exceeds_bound(bool small) const {
      const Values& mine = values_[small ? 0 : 1];
      const Values& other = values_[small ? 1 : 0];
      const Value* const own = &bound_[small ? 1 : 2];
      bool exceeds = false;
      for (std::size_t counter = 0; counter < kCounters; ++counter) {
        const std::int64_t now = mine.current(counter);
        exceeds |= now > get(own[counter * kSeries]);
        exceeds |= now + other.current(counter) > get(bound_[counter * kSeries]);
      }
      return exceeds;
    }

    SharedStatistics& owner_;
    std::array<Values, 2> values_;  // of the small pool, of the large one
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
