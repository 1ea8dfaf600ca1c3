#include "values/chances.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

namespace plimsoll::simulated {
namespace {

// The assumed chance that two numbers are equal, unless both are known to be integers.
constexpr double kHardlyEqual = 1e-12;

// Returns the chance that a standard normal number is below `value`.
double below(double value) { return 0.5 * std::erfc(-value / std::numbers::sqrt2); }

// The mean and the standard deviation of numbers whose distribution is known.
struct Moments {
  double mean;
  double deviation;
};

Moments moments_of(const Description& of) {
  if (of.is_constant()) return {of.low, 0};
  if (of.spread == Description::Spread::normal) return {of.mean, of.deviation};
  return {(of.low + of.high) / 2, (of.high - of.low) / std::sqrt(12.0)};
}

bool is_spread(const Description& of) { return of.is_random() || of.is_constant(); }

// Returns whether `limit` is a tolerance: only numbers that are almost zero lie between it and
// zero, and all numbers of `of` have its sign. Made-up numbers are never that close to zero
// (draw_one in description.cpp). Probabilities that sum to 1 are often that close to zero.
bool is_tolerance(const Description& of, double limit) {
  if (limit == 0 || of.is_whole || of.spread != Description::Spread::data) return false;
  if (of.sums_to_one != 0) return false;
  const double other_end = of.low >= 0 ? of.high : of.high <= 0 ? -of.low : 0;
  return std::abs(limit) <= kAlmostZero && other_end > 2 * kAlmostZero;
}

// Returns the chance that a number drawn from `one` is less than a number drawn from `other`. Uses
// both distributions. Call it only if the bounds of the numbers do not decide the comparison.
double chance_of_spread(const Description& one, const Description& other, bool or_equal,
                        bool are_integers) {
  // The bounds did not decide, so the chance is neither 0 nor 1.
  const auto open = [](double chance) { return std::clamp(chance, 1e-12, 1 - 1e-12); };
  if (!is_spread(one) || !is_spread(other)) return 0.5;
  using Spread = Description::Spread;
  const double step = are_integers ? 1 : 0;
  const auto part_below = [&](const Description& of, double bound, bool with_bound) {
    const double whole =
        are_integers ? with_bound ? std::floor(bound) + 1 : std::ceil(bound) : bound;
    return (whole - of.low) / (of.high - of.low + step);
  };
  if (one.spread == Spread::even && other.is_constant()) {
    return open(part_below(one, other.low, or_equal));
  }
  if (other.spread == Spread::even && one.is_constant()) {
    return open(1 - part_below(other, one.low, !or_equal));
  }
  const Moments first = moments_of(one);
  const Moments second = moments_of(other);
  return open(below((second.mean - first.mean) / std::hypot(first.deviation, second.deviation)));
}

// Returns the chance that a value drawn from `one` is less than a value drawn from `other`, if
// their bounds alone decide it; otherwise nothing.
std::optional<double> less_by_bounds(const Description& one, const Description& other,
                                     bool or_equal) {
  if (one.high < other.low) return 1;
  if (one.low > other.high) return 0;
  if (one.is_constant() && other.is_constant()) return or_equal ? 1 : 0;
  if (or_equal && one.high <= other.low) return 1;
  if (!or_equal && one.low >= other.high) return 0;
  return std::nullopt;
}

// If `is_first`, returns the chance that an element of `of` is less than `number`; otherwise the
// chance that the element is greater. With `or_equal`, an equal element counts too. Leaves out the
// atoms of `of`: the numbers that have a chance of their own, such as the zeros of a mask. If
// `are_integers` is false, assumes that all other elements lie strictly between the bounds of `of`.
Chance less_of_rest(Description of, double number, bool is_first, bool are_integers,
                    bool or_equal) {
  of.atoms = {};
  if (!are_integers && number <= of.low) return {is_first ? 0.0 : 1.0, true};
  if (!are_integers && number >= of.high) return {is_first ? 1.0 : 0.0, true};
  const Description constant = Description::constant(number);
  return {is_first ? chance_of_spread(of, constant, or_equal, are_integers)
                   : chance_of_spread(constant, of, or_equal, are_integers),
          of.is_random()};
}

// Returns the chance that `one` is less than `other` if one of them is a tolerance; otherwise
// nothing.
std::optional<double> less_by_tolerance(const Description& one, const Description& other) {
  if (other.is_constant() && one.atom_share() == 0 && is_tolerance(one, other.low)) {
    return one.low >= 0 ? kHardlyEqual : 1 - kHardlyEqual;
  }
  if (one.is_constant() && other.atom_share() == 0 && is_tolerance(other, one.low)) {
    return other.low >= 0 ? 1 - kHardlyEqual : kHardlyEqual;
  }
  return std::nullopt;
}

}  // namespace

Chance chance_of_less(const Description& one, const Description& other, bool or_equal,
                      bool are_integers, bool is_single) {
  if (const auto sure = less_by_bounds(one, other, or_equal)) return {*sure, true};
  if (is_single && !are_integers) {
    if (const auto nearly = less_by_tolerance(one, other)) {
      return {*nearly, is_random_pair(one, other)};
    }
  }
  const bool is_first = other.is_constant();  // `one` has the distribution, `other` is a constant
  const Description& of = is_first ? one : other;
  if ((!is_first && !one.is_constant()) || of.atom_share() == 0) {
    return {chance_of_spread(one, other, or_equal, are_integers), is_random_pair(one, other)};
  }
  const double number = is_first ? other.low : one.low;
  const double rest = 1 - of.atom_share();
  Chance chance = less_of_rest(of, number, is_first, are_integers, or_equal);
  if (rest < kHardlyEver) chance = {0, true};
  chance.share *= rest;
  for (const Description::Atom& atom : of.atoms) {
    if (atom.share == 0) continue;
    const bool is_less = is_first ? atom.at < number : number < atom.at;
    if (is_less || (or_equal && atom.at == number)) chance.share += atom.share;
    chance.is_random = chance.is_random && atom.is_random;
  }
  chance.share = std::clamp(chance.share, kHardlyEqual, 1 - kHardlyEqual);
  return chance;
}

Chance chance_of_equal(const Description& one, const Description& other, c10::ScalarType type) {
  if (one.high < other.low || one.low > other.high) return {0, true};
  if (one.is_constant() && other.is_constant()) return {1, true};
  const bool is_infinite = (one.is_constant() && std::isinf(one.low) && other.is_finite) ||
                           (other.is_constant() && std::isinf(other.low) && one.is_finite);
  if (is_infinite) return {0, true};
  if (type == c10::ScalarType::Bool) {
    const double first = one.is_constant() ? one.low : one.mean;
    const double second = other.is_constant() ? other.low : other.mean;
    return {first * second + (1 - first) * (1 - second), is_random_pair(one, other)};
  }
  const auto atoms_of = [](const Description& of) {
    return of.is_constant() ? std::array{Description::Atom{of.low, 1, true}, Description::Atom{}}
                            : of.atoms;
  };
  Chance chance{0, true};
  double pairs = 0;  // the fraction of pairs whose two numbers are both atoms
  for (const Description::Atom& first : atoms_of(one)) {
    for (const Description::Atom& second : atoms_of(other)) {
      const double share = first.share * second.share;
      pairs += share;
      if (share == 0 || first.at != second.at) continue;
      chance.share += share;
      chance.is_random = chance.is_random && first.is_random && second.is_random;
    }
  }
  const auto is_whole = [&](const Description& of) {
    return of.is_whole || c10::isIntegralType(type, /*includeBool=*/true) ||
           (of.is_constant() && of.low == std::trunc(of.low));
  };
  const double values = std::max(one.high - one.low, other.high - other.low) + 1;
  const double hit = !is_whole(one) || !is_whole(other) ? kHardlyEqual
                     : std::isfinite(values)            ? 1 / values
                                                        : 0.5;
  // If some pairs consist of two equal atoms, plimsoll counts only these pairs. It assumes that the
  // numbers of all other pairs differ, although whole numbers may be equal by chance.
  if (chance.share > 0) return chance;
  return {std::clamp((1 - pairs) * hit, kHardlyEqual, 1 - kHardlyEqual),
          is_random_pair(one, other)};
}

bool is_random_pair(const Description& one, const Description& other) {
  return is_spread(one) && is_spread(other);
}

Chance chance_of_limit(const Description& of, double limit, bool is_low) {
  if (is_low ? limit <= of.low : limit >= of.high) return {};
  if (is_low ? limit >= of.high : limit <= of.low) return {1, true};
  if (of.is_random()) {
    const Description constant = Description::constant(limit);
    return is_low ? chance_of_less(of, constant, true, of.is_whole)
                  : chance_of_less(constant, of, true, of.is_whole);
  }
  double share = 0;
  if (std::isfinite(of.low) && std::isfinite(of.high)) {
    share = (limit - of.low) / (of.high - of.low);
  } else {
    const double all = below(of.high) - below(of.low);
    share = all > 0 ? (below(limit) - below(of.low)) / all : of.low >= 0 ? 0.0 : 1.0;
  }
  return {std::clamp(is_low ? share : 1 - share, 0.0, 1.0), false};
}

}  // namespace plimsoll::simulated
