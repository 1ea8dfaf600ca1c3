// Measures how much of an allocator's memory lies in each tier of a simulated GPU.
//
// The elastic allocator itself counts the bytes that it puts into shared memory. Other allocators
// cannot, because Windows' driver moves their memory into shared memory ("spills") without telling
// them. For them, the meter asks the driver after each request and fills in the missing counters.
#pragma once

#include <vector>

#include "plimsoll/allocator/allocator.h"
#include "plimsoll/simulated/driver.h"

namespace plimsoll {

class TierMeter {
 public:
  // Takes an allocator that has no used blocks, and its driver. Both outlive the meter.
  // `allocator_chooses` says whether the allocator itself chooses the tier of its memory.
  TierMeter(const Allocator& allocator, SimulatedDriver& driver, bool allocator_chooses = false)
      : allocator_(allocator),
        driver_(driver),
        driver_spills_(driver.spills() && !allocator_chooses) {}

  // Counts a block that the program has received. Call it after the request was served.
  void lent(Address block, Bytes size);
  // Counts a block that the program gives back. Call it before the block is freed.
  void returning(Address block, Bytes size);

  // Returns the allocator's statistics, with the counters of the tiers.
  [[nodiscard]] Statistics statistics();
  // Returns whether the driver has put memory into shared memory since the last reset of the
  // counters.
  [[nodiscard]] bool has_spilled() const { return spills_ > 0; }
  // Returns the peak of reserved dedicated memory, measured after each request.
  [[nodiscard]] Bytes peak_dedicated() const { return peak_dedicated_; }
  void reset_peak();
  void reset_accumulated();

  // Returns the allocator's segments. `shared` of each block and segment is filled in, even if the
  // allocator cannot count it.
  [[nodiscard]] std::vector<SegmentInfo> segments() const;

 private:
  [[nodiscard]] Bytes dedicated_reserved() const;
  void look_at_driver();

  const Allocator& allocator_;
  SimulatedDriver& driver_;
  bool driver_spills_;  // the driver spills without telling the allocator
  Bytes peak_dedicated_ = 0;
  // The meter counts these only if `driver_spills_`. Otherwise the allocator counts them itself.
  Stat shared_allocated_;
  Stat shared_reserved_;
  std::int64_t spills_ = 0;
};

}  // namespace plimsoll
