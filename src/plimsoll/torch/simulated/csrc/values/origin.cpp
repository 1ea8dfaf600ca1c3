#include "values/origin.h"

#include <algorithm>

namespace plimsoll::simulated {

std::uint64_t mixed(std::uint64_t one, std::uint64_t other) {  // with the finalizer of SplitMix64
  std::uint64_t value = one * 0x9E3779B97F4A7C15U + other + 0x632BE59BD9B4E019U;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31);
}

bool Origin::is_of(const Origin& ancestor) const {
  return (ancestors & ancestor_bit(ancestor.way)) != 0;
}

void Origin::settle(const Settled& condition) {
  if (condition.way == 0) return;
  const auto is_same = [&](const Settled& each) {
    return each.way == condition.way && each.is_turned == condition.is_turned;
  };
  const auto known = std::ranges::find_if(settled, is_same);
  if (known != settled.end()) {
    known->share = std::max(known->share, condition.share);
    return;
  }
  auto place = std::ranges::find(settled, std::uint64_t{0}, &Settled::way);
  if (place == settled.end()) place = std::shift_left(settled.begin(), settled.end(), 1);
  *place = condition;
}

Origin Origin::with_replaced(double share, const Settled& condition) const {
  Origin made = *this;
  made.state = new_origin().state;
  made.settled = {};
  for (const Settled& each : settled) {
    const bool is_same = each.way == condition.way && each.is_turned == condition.is_turned;
    if (!is_same) made.settle({each.way, each.is_turned, share + (1 - share) * each.share});
  }
  made.settle(condition);
  return made;
}

Origin origin_by_number(std::uint64_t number, std::uint64_t within) {
  Origin made;
  made.way = mixed(number, 0);
  made.state = mixed(made.way, within);
  made.ancestors = ancestor_bit(made.way);
  return made;
}

Origin new_origin() { return origin_by_number(next_series()); }

Description settled_truth(const Description& truth, Origin& origin) {
  Description made = truth;
  for (const Origin::Settled& each : origin.settled) {
    if (each.way != origin.way || each.way == 0) continue;
    const double is_true = made.is_constant() ? made.low : made.mean;
    const bool is_other = each.is_turned != origin.is_turned;
    const double open = (is_other ? 1 - is_true : is_true) * each.share;
    made = Description::truth(is_other ? 1 - open : open, truth.is_constant() || truth.is_random());
    origin.open = std::min(origin.open, open);
  }
  return made;
}

}  // namespace plimsoll::simulated
