// Counts the calls of a simulated driver, and makes them fail on demand.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "plimsoll/driver/driver.h"

namespace plimsoll {

enum class Call : std::uint8_t {
  allocate,
  deallocate,
  reserve,
  unreserve,
  create,
  release,
  map,
  set_access,
  unmap,
  record,
  query,
  synchronize,
  allocate_host,
  deallocate_host,
  copy,
  count,
};
inline constexpr std::size_t kCallCount = static_cast<std::size_t>(Call::count);

// Makes calls of one kind fail: the next `after` calls succeed, and then `times` calls fail.
struct Fault {
  Call call = Call::allocate;
  std::uint64_t after = 0;
  std::uint64_t times = std::numeric_limits<std::uint64_t>::max();
  Status status = Status::out_of_memory;
};

class Calls {
 public:
  // Counts the call and returns success, unless a fault makes it fail.
  Status begin(Call call) {
    ++counts_[static_cast<std::size_t>(call)];
    Status status = Status::success;
    for (auto& [fault, seen] : faults_) {
      if (fault.call != call) continue;
      ++seen;
      if (seen > fault.after && seen - fault.after <= fault.times) status = fault.status;
    }
    return status;
  }

  [[nodiscard]] std::uint64_t count(Call call) const {
    return counts_[static_cast<std::size_t>(call)];
  }
  void inject(const Fault& fault) { faults_.push_back({fault, 0}); }
  void clear_faults() { faults_.clear(); }

 private:
  struct ArmedFault {
    Fault fault;
    std::uint64_t seen = 0;
  };

  std::array<std::uint64_t, kCallCount> counts_{};
  std::vector<ArmedFault> faults_;
};

}  // namespace plimsoll
