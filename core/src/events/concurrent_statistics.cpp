#include "plimsoll/events/concurrent_statistics.h"

#include <algorithm>
#include <limits>
#include <mutex>

namespace plimsoll {

namespace {

using Guard = std::lock_guard<SpinLock>;

}  // namespace

// Describes a counter: it adds up `quantity` over all live blocks and, if `with_pending`, also over
// all blocks whose free is pending. PyTorch calls these two kinds of blocks active.
struct ConcurrentStatistics::Rule {
  std::size_t quantity;
  bool with_pending;
};
constexpr std::array<ConcurrentStatistics::Rule, ConcurrentStatistics::kCounters>
    ConcurrentStatistics::kRules{{
        {Shard::kBlocks, false},     // allocation
        {Shard::kBlocks, true},      // active
        {Shard::kSize, false},       // allocated_bytes
        {Shard::kSize, true},        // active_bytes
        {Shard::kRequested, false},  // requested_bytes: `request_free` does not lower this sum
    }};

// Locks the bounds of all shards while it exists. Meanwhile no shard can borrow from another, so no
// bound is counted twice.
class ConcurrentStatistics::BoundsGuard {
 public:
  explicit BoundsGuard(std::deque<Shard>& shards) : shards_(shards) {
    for (Shard& shard : shards_) shard.bound_lock_.lock();
  }
  BoundsGuard(const BoundsGuard&) = delete;
  BoundsGuard& operator=(const BoundsGuard&) = delete;
  ~BoundsGuard() {
    for (Shard& shard : shards_) shard.bound_lock_.unlock();
  }

 private:
  std::deque<Shard>& shards_;
};

// --- a shard -----------------------------------------------------------------------------------

// Counts a free that has to wait. The block is no longer live, but it is still active. The shard's
// live values fall, and its bounds fall by the same amounts, so its room stays the same. With more
// room, the shard could allocate so much that the active bytes exceed their peak unnoticed.
void ConcurrentStatistics::Shard::request_free(bool small, Bytes size) {
  const Guard guard(owner_.lock_);
  const Guard bounds(bound_lock_);
  Pool& mine = of(small);
  const std::array<Bytes, 2> amounts{1, size};
  for (const std::size_t quantity : {kBlocks, kSize}) {
    add(mine.freed[quantity], amounts[quantity]);
    add(mine.pending[quantity], amounts[quantity]);
    subtract(bound_[0][quantity], amounts[quantity]);
    subtract(bound_[small ? 1 : 2][quantity], amounts[quantity]);
  }
}

void ConcurrentStatistics::Shard::look() {
  for (std::size_t series = 0; series < kSeries; ++series) {
    for (std::size_t quantity = 0; quantity < kQuantities; ++quantity) {
      seen_[series][quantity] = series == 0 ? 0 : live(series, quantity);
      if (series > 0) seen_[0][quantity] += seen_[series][quantity];
    }
  }
}

bool ConcurrentStatistics::Shard::borrow() {
  const Guard guard(bound_lock_);
  const Shard* const last = lender_;
  while (exceeds_bound()) {
    lender_ = lender_->next_.load(std::memory_order_acquire);
    if (lender_ != this && lender_->bound_lock_.try_lock()) {
      borrow_of(*lender_);
      lender_->bound_lock_.unlock();
    }
    if (lender_ == last) return !exceeds_bound();
  }
  return true;
}

void ConcurrentStatistics::Shard::borrow_of(Shard& lender) {
  PerSeries borrowed{};
  for (std::size_t series = 0; series < kSeries; ++series) {
    for (std::size_t quantity = 0; quantity < kQuantities; ++quantity) {
      Value& bound = lender.bound_[series][quantity];
      const std::int64_t room = get(bound_[series][quantity]) - live(series, quantity);
      const std::int64_t theirs = get(bound) - lender.live(series, quantity);
      if (theirs <= std::max<std::int64_t>(room, 0)) continue;
      borrowed[series][quantity] = std::min(theirs, (theirs - room + 1) / 2);
      change(bound, -borrowed[series][quantity]);
    }
  }
  // This fence and the one in `allocate` belong together. Either the lender sees its lowered bound,
  // or this thread sees that the lender exceeded the bound.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (std::size_t series = 0; series < kSeries; ++series) {
    for (std::size_t quantity = 0; quantity < kQuantities; ++quantity) {
      const std::int64_t amount = borrowed[series][quantity];
      Value& bound = lender.bound_[series][quantity];
      const std::int64_t missing = lender.live(series, quantity) - get(bound);
      const std::int64_t returned = std::clamp<std::int64_t>(missing, 0, amount);
      change(bound, returned);
      change(bound_[series][quantity], amount - returned);
    }
  }
}

// --- all shards --------------------------------------------------------------------------------

ConcurrentStatistics::Shard& ConcurrentStatistics::add_shard() {
  const Guard guard(lock_);
  Shard* const last = shards_.empty() ? nullptr : &shards_.back();
  Shard& shard = shards_.emplace_back(*this);
  shard.next_ = &shards_.front();
  if (last != nullptr) last->next_.store(&shard, std::memory_order_release);
  return shard;
}

void ConcurrentStatistics::look() {
  live_ = {};
  pending_ = {};
  for (Shard& shard : shards_) {
    shard.look();
    for (std::size_t series = 0; series < kSeries; ++series) {
      for (std::size_t quantity = 0; quantity < Shard::kQuantities; ++quantity) {
        live_[series][quantity] += shard.seen_[series][quantity];
      }
    }
    for (std::size_t pool = 0; pool < kPools; ++pool) {
      for (const std::size_t quantity : {Shard::kBlocks, Shard::kSize}) {
        const std::int64_t pending = Shard::get(shard.pools_[pool].pending[quantity]);
        pending_[0][quantity] += pending;
        pending_[pool + 1][quantity] += pending;
      }
    }
  }
  for (std::size_t counter = 0; counter < kCounters; ++counter) {
    for (std::size_t series = 0; series < kSeries; ++series) {
      std::int64_t& peak = peak_[counter][series];
      peak = std::max(peak, sum_of(counter, series));
    }
  }
}

// Returns a counter's sum over all shards, from the values that `look()` read last.
std::int64_t ConcurrentStatistics::sum_of(std::size_t counter, std::size_t series) const {
  const Rule rule = kRules[counter];
  const std::int64_t live = live_[series][rule.quantity];
  return rule.with_pending ? live + pending_[series][rule.quantity] : live;
}

void ConcurrentStatistics::raise_peaks(Shard& shard) {
  if (shard.borrow()) return;
  const Guard guard(lock_);
  const BoundsGuard bounds(shards_);
  if (shard.exceeds_bound()) share_out();
}

void ConcurrentStatistics::share_out() {
  bool settled = false;
  while (!settled) {
    look();
    for (std::size_t series = 0; series < kSeries; ++series) {
      for (std::size_t quantity = 0; quantity < Shard::kQuantities; ++quantity) {
        std::int64_t left = std::numeric_limits<std::int64_t>::max();
        for (std::size_t counter = 0; counter < kCounters; ++counter) {
          if (kRules[counter].quantity != quantity) continue;
          left = std::min(left, peak_[counter][series] - sum_of(counter, series));
        }
        auto sharers = static_cast<std::int64_t>(shards_.size());
        for (Shard& shard : shards_) {
          const std::int64_t share = left / sharers--;
          left -= share;
          shard.bound_[series][quantity].store(shard.seen_[series][quantity] + share,
                                               std::memory_order_relaxed);
        }
      }
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
    settled = std::none_of(shards_.begin(), shards_.end(),
                           [](const Shard& shard) { return shard.exceeds_bound(); });
  }
}

ConcurrentStatistics::Totals ConcurrentStatistics::totals() const {
  Totals totals{};
  for (std::size_t counter = 0; counter < kCounters; ++counter) {
    for (const Shard& shard : shards_) {
      for (std::size_t pool = 0; pool < kPools; ++pool) {
        totals[counter][pool] += Shard::get(shard.pools_[pool].allocated[kRules[counter].quantity]);
      }
    }
  }
  return totals;
}

void ConcurrentStatistics::read(Statistics& statistics) {
  const Guard guard(lock_);
  const BoundsGuard bounds(shards_);
  PoolStat* const stats[] = {&statistics.allocation, &statistics.active,
                             &statistics.allocated_bytes, &statistics.active_bytes,
                             &statistics.requested_bytes};
  look();
  const Totals allocated = totals();
  for (std::size_t counter = 0; counter < kCounters; ++counter) {
    Stat* const all = &stats[counter]->all;
    Stat* const pools[] = {&stats[counter]->small_pool, &stats[counter]->large_pool};
    for (std::size_t pool = 0; pool < kPools; ++pool) {
      pools[pool]->current = sum_of(counter, pool + 1);
      pools[pool]->peak = peak_[counter][pool + 1];
      pools[pool]->allocated = allocated[counter][pool] - allocated_before_[counter][pool];
      pools[pool]->freed =
          allocated[counter][pool] - pools[pool]->current - freed_before_[counter][pool];
    }
    all->current = sum_of(counter, 0);
    all->peak = peak_[counter][0];
    all->allocated = pools[0]->allocated + pools[1]->allocated;
    all->freed = pools[0]->freed + pools[1]->freed;
  }
}

void ConcurrentStatistics::reset_peak() {
  const Guard guard(lock_);
  const BoundsGuard bounds(shards_);
  peak_ = {};
  share_out();
}

void ConcurrentStatistics::reset_accumulated() {
  const Guard guard(lock_);
  const BoundsGuard bounds(shards_);
  look();
  allocated_before_ = totals();
  for (std::size_t counter = 0; counter < kCounters; ++counter) {
    for (std::size_t pool = 0; pool < kPools; ++pool) {
      freed_before_[counter][pool] = allocated_before_[counter][pool] - sum_of(counter, pool + 1);
    }
  }
}

}  // namespace plimsoll
