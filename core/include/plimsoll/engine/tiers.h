// What an engine does about its two tiers besides what its allocator does.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <stdexcept>
#include <utility>

#include "plimsoll/allocator/elastic/elastic.h"

namespace plimsoll {

// Tells somebody, once, of the first request that got shared memory because dedicated was spent.
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

// The most dedicated memory that may be reserved: the program sets a fraction whenever it sees fit,
// and a person sets a limit beside it. The lower one counts.
struct DedicatedLimits {
  std::optional<Bytes> of_program;
  std::optional<Bytes> of_person;

  [[nodiscard]] std::optional<Bytes> lower() const {
    if (of_program && of_person) return std::min(*of_program, *of_person);
    return of_program ? of_program : of_person;
  }
};

// The elastic allocator, or an exception that says that there is none.
inline ElasticAllocator& require_elastic(ElasticAllocator* allocator) {
  if (allocator == nullptr) {
    throw std::invalid_argument("this needs the elastic allocator, and PyTorch's rules serve here");
  }
  return *allocator;
}

}  // namespace plimsoll
