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
// values that the program's control flow depends on. `generous`: as `automatic`, with a budget of
// gigabytes and seconds, for a program that runs for the sake of what it prints.
enum class Values : std::uint8_t { automatic, real, none, generous };

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
  // Returns how many operations a large host tensor with contents takes for each element. They
  // stand for the later operations on the tensor: PyTorch computes all of these, and none is
  // charged.
  [[nodiscard]] double operations_per_host_element() const;

 private:
  [[nodiscard]] bool is_generous() const { return values_ == Values::generous; }
  [[nodiscard]] std::int64_t most_bytes() const;
  [[nodiscard]] double most_operations() const;

  std::atomic<Values> values_ = Values::automatic;
  std::atomic<std::int64_t> bytes_ = 0;  // bytes taken now
  std::atomic<double> operations_ = 0;   // operations taken so far
};

// Returns whether values are so few that plimsoll always keeps them. Tensors that decide control
// flow, such as lengths and losses, have few values.
bool are_few(std::size_t bytes, at::ScalarType type);

}  // namespace plimsoll::simulated
