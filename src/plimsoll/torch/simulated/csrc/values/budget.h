// The budget for computing values: how many bytes are kept and how many operations are done.
// Neither depends on a clock, so the result is the same on every machine.
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
