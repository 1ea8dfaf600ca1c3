// Tells somebody, once, of the first request that got shared memory because dedicated was spent.
#pragma once

#include <atomic>
#include <functional>
#include <stdexcept>
#include <utility>

#include "plimsoll/base/units.h"

namespace plimsoll {

class SpillWatch {
 public:
  using Told = std::function<void(Bytes)>;

  void set(Told told) {
    if (awaits_.load()) throw std::invalid_argument("somebody is to be told of spills already");
    told_ = std::move(told);
    awaits_ = true;
  }
  // After a request of so many bytes, with no lock held. `spills`: who says whether it has spilled.
  template <typename Spills>
  void look(const Spills& spills, Bytes size) {
    if (awaits_.load(std::memory_order_relaxed) && spills.has_spilled() &&
        awaits_.exchange(false)) {
      told_(size);
    }
  }

 private:
  std::atomic<bool> awaits_{false};
  Told told_;
};

}  // namespace plimsoll
