#include "values/budget.h"

namespace plimsoll::simulated {
namespace {

constexpr std::size_t kFewFloatBytes = 4096;
// This limit is larger than the one for floats, because integers often decide the shapes of
// tensors.
constexpr std::size_t kFewIntegerBytes = std::size_t{1} << 20;
constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;
constexpr std::int64_t kOnlyForIntegers = std::int64_t{32} << 20;
constexpr double kMostOperations = 1.5e9;  // some tenths of a second on the host

bool holds_integers(at::ScalarType type) { return c10::isIntegralType(type, /*includeBool=*/true); }

std::int64_t most_bytes(at::ScalarType type) {
  return holds_integers(type) ? kMostBytes : kMostBytes - kOnlyForIntegers;
}

}  // namespace

Budget& Budget::instance() {
  static auto* const budget = new Budget;
  return *budget;
}

void Budget::set(Values values) { values_ = values; }

bool Budget::take_bytes(std::size_t bytes, at::ScalarType type) {
  if (values_ == Values::none) return false;
  const auto wanted = static_cast<std::int64_t>(bytes);
  const bool has_room = bytes_.fetch_add(wanted) + wanted <= most_bytes(type);
  if (has_room || values_ == Values::real) return true;
  bytes_ -= wanted;
  return false;
}

bool Budget::has_bytes(std::size_t bytes, at::ScalarType type) const {
  if (values_ != Values::automatic) return values_ == Values::real;
  return bytes_ + static_cast<std::int64_t>(bytes) <= most_bytes(type);
}

void Budget::give_bytes(std::size_t bytes) { bytes_ -= static_cast<std::int64_t>(bytes); }

bool Budget::take_operations(double operations) {
  if (values_ == Values::real) return true;
  if (values_ == Values::none) return false;
  double taken = operations_;
  do {
    if (taken + operations > kMostOperations) return false;
  } while (!operations_.compare_exchange_weak(taken, taken + operations));
  return true;
}

bool are_few(std::size_t bytes, at::ScalarType type) {
  return bytes <= (holds_integers(type) ? kFewIntegerBytes : kFewFloatBytes);
}

}  // namespace plimsoll::simulated
