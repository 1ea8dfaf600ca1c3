#include "plimsoll/trace/shared_statistics.h"

#include <algorithm>

namespace plimsoll {

SharedStatistics::Shard& SharedStatistics::add_shard() {
  const std::lock_guard lock(mutex_);
  return shards_.emplace_back(*this);
}

std::int64_t SharedStatistics::sum_of(std::size_t value) const {
  std::int64_t sum = 0;
  for (const Shard& shard : shards_) sum += shard.current(value);
  return sum;
}

// Who finds another thread at it does not wait: the shard stays beyond its bound, so its next
// request looks again.
void SharedStatistics::raise_peaks(const Shard& shard) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;
  for (std::size_t value = 0; value < Shard::kValues; ++value) {
    if (shard.exceeds_bound(value)) raise_peak(value);
  }
}

void SharedStatistics::raise_peak(std::size_t value) {
  bool settled = false;
  while (!settled) {
    std::int64_t sum = 0;
    std::int64_t wanted = 0;  // to let every shard go as far as it ever was
    for (Shard& shard : shards_) {
      const std::int64_t current = shard.current(value);
      shard.furthest_[value] = std::max(shard.furthest_[value], current);
      sum += current;
      wanted += shard.furthest_[value] - current;
    }
    peak_[value] = std::max(peak_[value], sum);
    const std::int64_t left = peak_[value] - sum;
    const double share =
        wanted <= left ? 1.0 : static_cast<double>(left) / static_cast<double>(wanted);
    const std::int64_t rest = std::max(left - wanted, std::int64_t{0}) /
                              std::max(static_cast<std::int64_t>(shards_.size()), std::int64_t{1});
    for (Shard& shard : shards_) {
      const std::int64_t current = shard.current(value);
      const std::int64_t wish = std::max(shard.furthest_[value] - current, std::int64_t{0});
      const std::int64_t bound =
          current + static_cast<std::int64_t>(share * static_cast<double>(wish)) + rest;
      shard.bound_[value].store(bound, std::memory_order_relaxed);
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
    settled = true;
    for (const Shard& shard : shards_) settled = settled && !shard.exceeds_bound(value);
  }
}

SharedStatistics::Totals SharedStatistics::totals() const {
  Totals sums{};
  for (const Shard& shard : shards_) {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] += shard.total(i);
    }
  }
  return sums;
}

void SharedStatistics::read(Statistics& statistics) {
  const std::lock_guard lock(mutex_);
  PoolStat* const stats[] = {&statistics.allocation, &statistics.active,
                             &statistics.allocated_bytes, &statistics.active_bytes,
                             &statistics.requested_bytes};
  const Totals allocated = totals();
  for (std::size_t counter = 0; counter < kCounters; ++counter) {
    Stat* const series[] = {&stats[counter]->all, &stats[counter]->small_pool,
                            &stats[counter]->large_pool};
    for (std::size_t i = 0; i < Shard::kSeries; ++i) {
      const std::size_t value = counter * Shard::kSeries + i;
      series[i]->current = sum_of(value);
      peak_[value] = std::max(peak_[value], series[i]->current);
      series[i]->peak = peak_[value];
      if (i == 0) continue;
      const std::size_t total = counter * 2 + i - 1;
      series[i]->allocated = allocated[total] - allocated_before_[total];
      series[i]->freed = allocated[total] - series[i]->current - freed_before_[total];
    }
    series[0]->allocated = series[1]->allocated + series[2]->allocated;
    series[0]->freed = series[1]->freed + series[2]->freed;
  }
}

void SharedStatistics::reset_peak() {
  const std::lock_guard lock(mutex_);
  for (std::size_t value = 0; value < Shard::kValues; ++value) {
    peak_[value] = sum_of(value);
    for (Shard& shard : shards_) shard.furthest_[value] = 0;
    raise_peak(value);
  }
}

void SharedStatistics::reset_accumulated() {
  const std::lock_guard lock(mutex_);
  allocated_before_ = totals();
  for (std::size_t counter = 0; counter < kCounters; ++counter) {
    for (std::size_t i = 0; i < 2; ++i) {
      const std::size_t total = counter * 2 + i;
      freed_before_[total] = allocated_before_[total] - sum_of(counter * Shard::kSeries + i + 1);
    }
  }
}

}  // namespace plimsoll
