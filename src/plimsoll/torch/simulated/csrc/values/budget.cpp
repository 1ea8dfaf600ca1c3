#include "values/budget.h"

namespace plimsoll::simulated {
namespace {

constexpr std::size_t kFewFloatBytes = 4096;
// This limit is larger than the one for floats, because integers often decide the shapes of
// tensors.
constexpr std::size_t kFewIntegerBytes = std::size_t{1} << 20;
constexpr std::int64_t kMostBytes = std::int64_t{32} << 20;
constexpr double kMostOperations = 1.5e9;  // some tenths of a second on the host
constexpr double kPerHostElement = 100;
// The budget of Values::generous. The bytes are a constant and no share of the host's free memory,
// so that every machine computes the same values.
constexpr std::int64_t kMostGenerousBytes = std::int64_t{2} << 30;
constexpr double kMostGenerousOperations = 1.5e10;  // some seconds on the host
constexpr double kPerHostElementIfGenerous = 20;

}  // namespace

Budget& Budget::instance() {
  static auto* const budget = new Budget;
  return *budget;
}

void Budget::set(Values values) { values_ = values; }

bool Budget::take_bytes(std::size_t bytes) {
  if (values_ == Values::none) return false;
  const auto wanted = static_cast<std::int64_t>(bytes);
  if (bytes_.fetch_add(wanted) + wanted <= most_bytes() || values_ == Values::real) return true;
  bytes_ -= wanted;
  return false;
}

bool Budget::has_bytes(std::size_t bytes) const {
  if (values_ == Values::real || values_ == Values::none) return values_ == Values::real;
  return bytes_ + static_cast<std::int64_t>(bytes) <= most_bytes();
}

void Budget::give_bytes(std::size_t bytes) { bytes_ -= static_cast<std::int64_t>(bytes); }

bool Budget::take_operations(double operations) {
  if (values_ == Values::real) return true;
  if (values_ == Values::none) return false;
  double taken = operations_;
  do {
    if (taken + operations > most_operations()) return false;
  } while (!operations_.compare_exchange_weak(taken, taken + operations));
  return true;
}

double Budget::operations_per_host_element() const {
  return is_generous() ? kPerHostElementIfGenerous : kPerHostElement;
}

std::int64_t Budget::most_bytes() const { return is_generous() ? kMostGenerousBytes : kMostBytes; }

double Budget::most_operations() const {
  return is_generous() ? kMostGenerousOperations : kMostOperations;
}

bool are_few(std::size_t bytes, at::ScalarType type) {
  return bytes <=
         (c10::isIntegralType(type, /*includeBool=*/true) ? kFewIntegerBytes : kFewFloatBytes);
}

}  // namespace plimsoll::simulated
