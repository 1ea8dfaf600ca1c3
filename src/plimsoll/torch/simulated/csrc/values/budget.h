// The budget of computed values: their bytes, and the operations on them. No clock is involved, so
// the result is the same on every machine.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace plimsoll::simulated {

// `automatic`: computes within the budget. `real`: always computes. `none`: computes only values
// that control flow depends on.
enum class Values : std::uint8_t { automatic, real, none };

class Budget {
 public:
  static Budget& instance();

  void set(Values values);
  // Takes bytes for values as long as they are kept; returns false if the budget has too few.
  bool take_bytes(std::size_t bytes);
  [[nodiscard]] bool has_bytes(std::size_t bytes) const;
  void give_bytes(std::size_t bytes);
  // Takes the cost of an operation's computation; returns false, and takes nothing, if the budget
  // has too little.
  bool take_operations(double operations);

 private:
  std::atomic<Values> values_ = Values::automatic;
  std::atomic<std::int64_t> bytes_ = 0;  // bytes taken so far
  std::atomic<double> operations_ = 0;   // operations taken so far
};

// Returns whether values are always kept, because there are few: control flow depends on few
// values, such as lengths and losses.
bool are_few(std::size_t bytes, at::ScalarType type);

}  // namespace plimsoll::simulated
