// Rules for operations that keep numbers within limits.
#include <algorithm>
#include <cmath>

#include "values/chances.h"
#include "values/describing/describing.h"

namespace plimsoll::simulated {
namespace {

Description limited(const Description& x, double low, double high) {
  if (x.low >= low && x.high <= high) return x;
  high = std::max(low, high);
  Description y = bounded(std::clamp(x.low, low, high), std::clamp(x.high, low, high));
  const Chance at_low = chance_of_limit(x, low, true);
  const Chance at_high = chance_of_limit(x, high, false);
  const double rest = 1 - x.atom_share();
  y.add_atom({low, at_low.share * rest, at_low.is_random});
  y.add_atom({high, at_high.share * rest, at_high.is_random});
  for (const Description::Atom& atom : x.atoms) {
    y.add_atom({std::clamp(atom.at, low, high), atom.share, atom.is_random});
  }
  y.is_whole = x.is_whole && low == std::trunc(low) && high == std::trunc(high);
  return y;
}

Description relu(const Operands& of) { return limited(of[0], 0, kNone); }
Description clamp(const Operands& of) {  // (self, min, max); also hardtanh
  if (of.tensor(1).defined() || of.tensor(2).defined()) return {};
  return limited(of[0], of.has(1) ? of[1].low : -kNone, of.has(2) ? of[2].high : kNone);
}
Description larger(const Operands& of) {
  if (of[1].is_constant()) return limited(of[0], of[1].low, kNone);
  if (of[0].is_constant()) return limited(of[1], of[0].low, kNone);
  return bounded(std::max(of[0].low, of[1].low), std::max(of[0].high, of[1].high));
}
Description smaller(const Operands& of) {
  if (of[1].is_constant()) return limited(of[0], -kNone, of[1].high);
  if (of[0].is_constant()) return limited(of[1], -kNone, of[0].high);
  return bounded(std::min(of[0].low, of[1].low), std::min(of[0].high, of[1].high));
}
Description hardsigmoid(const Operands& of) { return limited(linear(of[0], 1.0 / 6, 0.5), 0, 1); }
// Describes numbers after `value` has replaced every number that does not exceed the threshold.
Description threshold(const Operands& of) {  // (self, threshold, value)
  const Description x = of[0];
  const double limit = of.number(1, 0);
  if (x.low > limit) return x;
  const Chance under = chance_of_limit(x, limit, true);
  Description y =
      join(bounded(std::max(x.low, limit), std::max(x.high, limit)), of[2], 1 - under.share);
  return y;
}
// Describes numbers after zero has replaced every number from -lambd to lambd.
Description shrunk(const Operands& of) {  // (self, lambd)
  const Description x = of[0];
  const double limit = of.number(1, 0.5);
  const double out =
      chance_of_limit(x, -limit, true).share + chance_of_limit(x, limit, false).share;
  return join(bounded(std::min(x.low, 0.0), std::max(x.high, 0.0)), Description::constant(0), out);
}

const DescribeTable kLimitDescriptions{
    {"relu", relu},           {"clamp", clamp},       {"clamp_min", larger},
    {"clamp_max", smaller},   {"hardtanh", clamp},    {"hardsigmoid", hardsigmoid},
    {"threshold", threshold}, {"hardshrink", shrunk}, {"softshrink", shrunk},
    {"maximum", larger},      {"minimum", smaller},   {"fmax", larger},
    {"fmin", smaller},
};

}  // namespace
}  // namespace plimsoll::simulated
