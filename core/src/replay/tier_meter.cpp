#include "plimsoll/replay/tier_meter.h"

#include <algorithm>

namespace plimsoll {

void TierMeter::lent(Address block, Bytes size) {
  if (driver_spills_) {
    look_at_driver();
    const Bytes shared = driver_.shared_in(block, size);
    shared_allocated_.increase(shared);
    if (shared > 0) ++spills_;
  }
  peak_dedicated_ = std::max(peak_dedicated_, dedicated_reserved());
}

void TierMeter::returning(Address block, Bytes size) {
  if (driver_spills_) shared_allocated_.decrease(driver_.shared_in(block, size));
}

Statistics TierMeter::statistics() {
  Statistics statistics = allocator_.statistics();
  if (driver_spills_) {
    look_at_driver();
    statistics.shared_allocated_bytes = shared_allocated_;
    statistics.shared_reserved_bytes = shared_reserved_;
    statistics.num_spills = spills_;
  }
  return statistics;
}

void TierMeter::reset_peak() {
  look_at_driver();
  shared_allocated_.reset_peak();
  shared_reserved_.reset_peak();
  peak_dedicated_ = dedicated_reserved();
}

void TierMeter::reset_accumulated() {
  look_at_driver();
  shared_allocated_.reset_accumulated();
  shared_reserved_.reset_accumulated();
  spills_ = 0;
}

std::vector<SegmentInfo> TierMeter::segments() const {
  std::vector<SegmentInfo> segments = allocator_.segments();
  if (!driver_spills_) return segments;
  for (SegmentInfo& segment : segments) {
    segment.shared = driver_.shared_in(segment.address, segment.total_size);
    for (BlockInfo& block : segment.blocks) {
      block.shared = driver_.shared_in(block.address, block.size);
    }
  }
  return segments;
}

Bytes TierMeter::dedicated_reserved() const {
  const Statistics& now = allocator_.statistics();
  const Stat& shared = driver_spills_ ? shared_reserved_ : now.shared_reserved_bytes;
  return static_cast<Bytes>(
      std::max<std::int64_t>(0, now.reserved_bytes.all.current - shared.current));
}

void TierMeter::look_at_driver() {
  const Bytes now = driver_.spilled();
  const auto before = static_cast<Bytes>(shared_reserved_.current);
  if (now > before) shared_reserved_.increase(now - before);
  if (now < before) shared_reserved_.decrease(before - now);
}

}  // namespace plimsoll
