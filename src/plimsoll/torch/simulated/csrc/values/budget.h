// Limits the work of computing the values of simulated tensors on the host. The budget limits how
// many bytes of values plimsoll keeps, and how many operations it computes. It does not limit time,
// so every machine computes the same values.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace plimsoll::simulated {

// `automatic`: computes as long as the budget lasts. `real`: always computes. `none`: computes only
// values that the program's control flow depends on.
enum class Values : std::uint8_t { automatic, real, none };

class Budget {
 public:
  static Budget& instance();

  void set(Values values);
  // Reserves part of the budget for values, until `give_bytes`. Returns false if too few bytes are
  // left.
  bool take_bytes(std::size_t bytes);
  [[nodiscard]] bool has_bytes(std::size_t bytes) const;
  void give_bytes(std::size_t bytes);
  // Charges the budget for a computation. Returns false, and charges nothing, if too little is
  // left.
  bool take_operations(double operations);

 private:
  std::atomic<Values> values_ = Values::automatic;
  std::atomic<std::int64_t> bytes_ = 0;  // bytes taken now
  std::atomic<double> operations_ = 0;   // operations taken so far
};

// Returns whether values are so few that plimsoll always keeps them. Tensors that decide control
// flow, such as lengths and losses, have few values.
bool are_few(std::size_t bytes, at::ScalarType type);

}  // namespace plimsoll::simulated
