// The simulated machine: its clock, and the host memory that its GPUs share.
#pragma once

#include "plimsoll/base/units.h"
#include "plimsoll/driver/driver.h"

namespace plimsoll {

class SimulatedHost {
 public:
  explicit SimulatedHost(Bytes shared_capacity) : shared_{shared_capacity, shared_capacity} {}

  [[nodiscard]] double now_ns() const { return now_ns_; }
  // Advances the clock, which never goes back.
  void advance_to(double time_ns) { now_ns_ = time_ns > now_ns_ ? time_ns : now_ns_; }
  void advance(double duration_ns) { advance_to(now_ns_ + duration_ns); }

  [[nodiscard]] MemoryInfo shared_info() const { return shared_; }
  // Takes shared memory; `size` must not exceed the free part.
  void take_shared(Bytes size) { shared_.free -= size; }
  void give_back_shared(Bytes size) { shared_.free += size; }

 private:
  MemoryInfo shared_;
  double now_ns_ = 0;
};

}  // namespace plimsoll
