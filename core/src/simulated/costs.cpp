#include "plimsoll/simulated/costs.h"

#include <algorithm>

namespace plimsoll {

double Price::of(Bytes size) const {
  constexpr auto span = static_cast<double>(512 * kMiB - kGranule);
  const double beyond = std::max(0.0, static_cast<double>(size) - static_cast<double>(kGranule));
  return at_granule + (at_512_mib - at_granule) * beyond / span;
}

}  // namespace plimsoll
