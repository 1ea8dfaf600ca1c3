#include "values/distinct.h"

#include <cmath>

namespace plimsoll::simulated {

std::int64_t expected_distinct(const Description& of, std::int64_t count) {
  if (unknown() == Unknown::least && !of.is_random()) return 1;
  const double kinds = of.high - of.low + 1;
  if (!std::isfinite(kinds) || unknown() == Unknown::most) return count;
  return static_cast<std::int64_t>(
      std::round(kinds * -std::expm1(static_cast<double>(count) * std::log1p(-1 / kinds))));
}

}  // namespace plimsoll::simulated
