// Calls a function once: at the first request that got shared memory because dedicated memory was
// full.
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
  // Checks for a spill after a request of `size` bytes. The caller holds no lock. `spills` says
  // whether a spill has happened.
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
