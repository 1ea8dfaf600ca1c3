// How much is computed: bytes that values take, and operations on them. No clock decides, so that
// the answer is the same on every machine.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace plimsoll::simulated {

// `automatic`: within the budget. `real`: always. `none`: only what control flow hangs on.
enum class Values : std::uint8_t { automatic, real, none };

class Budget {
 public:
  static Budget& instance();

  void set(Values values);
  // Takes what values need as long as they are kept; false: there is not so much.
  bool take_bytes(std::size_t bytes);
  [[nodiscard]] bool has_bytes(std::size_t bytes) const;
  void give_bytes(std::size_t bytes);
  // Takes what an operation's computation costs; false: there is not so much, and nothing is taken.
  bool take_operations(double operations);

 private:
  std::atomic<Values> values_ = Values::automatic;
  std::atomic<std::int64_t> bytes_ = 0;  // taken
  std::atomic<double> operations_ = 0;   // taken
};

// Values that control flow hangs on, such as lengths and losses: always kept.
bool are_few(std::size_t bytes, at::ScalarType type);

}  // namespace plimsoll::simulated
