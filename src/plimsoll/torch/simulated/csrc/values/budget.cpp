#include "budget.h"

#include "../call.h"
#include "../tensors.h"

namespace plimsoll::simulated {
namespace {

constexpr std::size_t kFewFloatBytes = 4096;
constexpr std::size_t kFewIntegerBytes = std::size_t{1} << 20;  // they decide shapes
constexpr std::int64_t kMostBytes = std::int64_t{32} << 20;
constexpr double kMostOperations = 1.5e9;  // some tenths of a second

// Units an element: what is bound by memory, and what draws or takes logarithms.
constexpr double kPerElement = 16;
constexpr double kPerDrawnElement = 100;
// The host multiplies numbers of half precision that much slower.
constexpr double kHalfFactor = 16;

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

double cost_of(const Call& call) {
  double elements = 0;
  bool is_half = false;
  const auto count = [&](const at::Tensor& tensor) {
    if (is_simulated(tensor)) {
      elements += static_cast<double>(tensor.numel());
      is_half = is_half || c10::isReducedFloatingType(tensor.scalar_type());
    }
    return tensor;
  };
  for (const at::Tensor& tensor : call.inputs()) count(tensor);
  for (const c10::IValue& result : call.results()) map_tensors(result, count);
  const double flops = call.flops() * (is_half ? kHalfFactor : 1);
  return flops + elements * (call.info().is_random ? kPerDrawnElement : kPerElement);
}

}  // namespace plimsoll::simulated
