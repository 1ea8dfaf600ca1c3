#include "values/budget.h"

namespace plimsoll::simulated {
namespace {

constexpr std::size_t kFewFloatBytes = 4096;
// This limit is larger than the one for floats, because integers often decide the shapes of
// tensors.
constexpr std::size_t kFewIntegerBytes = std::size_t{1} << 20;
constexpr std::int64_t kMostBytes = std::int64_t{32} << 20;
constexpr double kMostOperations = 1.5e9;  // some tenths of a second on the host

}  // namespace

Budget& Budget::instance() {
  static auto* const budget = new Budget;
  return *budget;
}

void Budget::set(Values values) { values_ = values; }

bool Budget::take_bytes(std::size_t bytes) {
  if (values_ == Values::none) return false;
  const auto wanted = static_cast<std::int64_t>(bytes);
  if (bytes_.fetch_add(wanted) + wanted <= kMostBytes || values_ == Values::real) return true;
  bytes_ -= wanted;
  return false;
}

bool Budget::has_bytes(std::size_t bytes) const {
  if (values_ != Values::automatic) return values_ == Values::real;
  return bytes_ + static_cast<std::int64_t>(bytes) <= kMostBytes;
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
  return bytes <=
         (c10::isIntegralType(type, /*includeBool=*/true) ? kFewIntegerBytes : kFewFloatBytes);
}

}  // namespace plimsoll::simulated
