// How much of an allocator's memory lies in which tier of a simulated GPU, whoever put it there.
//
// The elastic allocator counts what it puts into shared memory. For the others it is Windows'
// driver that goes on in shared memory, and they are not told: there the meter asks the driver
// after each request, and fills in what the allocator's counters lack.
#pragma once

#include <vector>

#include "plimsoll/allocator/allocator.h"
#include "plimsoll/simulated/driver.h"

namespace plimsoll {

class TierMeter {
 public:
  // Both outlive the meter. Nothing has been lent yet. `allocator_chooses`: it says itself which
  // memory is of which tier.
  TierMeter(const Allocator& allocator, SimulatedDriver& driver, bool allocator_chooses = false)
      : allocator_(allocator),
        driver_(driver),
        driver_spills_(driver.spills() && !allocator_chooses) {}

  // To be called when a request was served.
  void lent(Address block, Bytes size);
  // To be called before a lent block is freed.
  void returning(Address block, Bytes size);

  // The allocator's, with the counters of the tiers.
  [[nodiscard]] Statistics statistics();
  // Whether the driver has put anything into shared memory since the counters began anew.
  [[nodiscard]] bool has_spilled() const { return spills_ > 0; }
  // The most reserved in dedicated memory, after any request.
  [[nodiscard]] Bytes peak_dedicated() const { return peak_dedicated_; }
  void reset_peak();
  void reset_accumulated();

  // The allocator's, with what of each block is in shared memory.
  [[nodiscard]] std::vector<SegmentInfo> segments() const;

 private:
  [[nodiscard]] Bytes dedicated_reserved() const;
  void look_at_driver();

  const Allocator& allocator_;
  SimulatedDriver& driver_;
  bool driver_spills_;  // and nobody is told
  Bytes peak_dedicated_ = 0;
  // Of a driver that spills by itself:
  Stat shared_allocated_;
  Stat shared_reserved_;
  std::int64_t spills_ = 0;
};

}  // namespace plimsoll
