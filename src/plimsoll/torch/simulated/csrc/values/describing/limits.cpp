// Numbers that are kept within limits.
#include <algorithm>

#include "describing.h"

namespace plimsoll::simulated {
namespace {

Description relu(const Operands& of) {
  return bounded(std::max(of[0].low, 0.0), std::max(of[0].high, 0.0));
}
Description clamp(const Operands& of) {
  const double low = of.has(1) ? of[1].low : -kNone;
  const double high = of.has(2) ? of[2].high : kNone;
  if (of.tensor(1).defined() || of.tensor(2).defined()) return {};
  Description x = of[0];
  if (x.low >= low && x.high <= high) return x;
  return bounded(std::clamp(x.low, low, std::max(low, high)),
                 std::clamp(x.high, low, std::max(low, high)));
}
Description clamp_min(const Operands& of) {
  return bounded(std::max(of[0].low, of[1].low), std::max(of[0].high, of[1].high));
}
Description clamp_max(const Operands& of) {
  return bounded(std::min(of[0].low, of[1].low), std::min(of[0].high, of[1].high));
}
Description larger(const Operands& of) {
  return bounded(std::max(of[0].low, of[1].low), std::max(of[0].high, of[1].high));
}
Description smaller(const Operands& of) {
  return bounded(std::min(of[0].low, of[1].low), std::min(of[0].high, of[1].high));
}

constexpr DescribeRow kLimitDescriptions[] = {
    {"relu", relu},      {"clamp", clamp},     {"clamp_min", clamp_min}, {"clamp_max", clamp_max},
    {"maximum", larger}, {"minimum", smaller}, {"fmax", larger},         {"fmin", smaller},
};

}  // namespace

std::span<const DescribeRow> limit_descriptions() { return kLimitDescriptions; }

}  // namespace plimsoll::simulated
