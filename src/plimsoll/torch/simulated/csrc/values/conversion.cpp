#include "values/conversion.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <optional>

#include "values/chances.h"

namespace plimsoll::simulated {
namespace {

// Returns the number that an element of a type holds after `value` was written to it. Returns
// nullopt if `value` is too large for the type, or if plimsoll does not know how the type rounds.
std::optional<double> held(double value, c10::ScalarType type) {
  if (type == c10::ScalarType::Double || c10::isIntegralType(type, /*includeBool=*/true)) {
    return value;
  }
  const auto single = static_cast<float>(value);
  double rounded = single;
  if (type == c10::ScalarType::Half) {
    rounded = static_cast<float>(c10::Half(single));
  } else if (type == c10::ScalarType::BFloat16) {
    rounded = static_cast<float>(c10::BFloat16(single));
  } else if (type != c10::ScalarType::Float) {
    return std::nullopt;
  }
  if (std::isinf(rounded) && !std::isinf(value)) return std::nullopt;
  return rounded;
}

}  // namespace

Description in_type(Description of, c10::ScalarType from, c10::ScalarType to) {
  if (of.is_given && of.is_constant() && from != to) {
    const std::optional<double> rounded = held(of.low, from);
    of.is_given = rounded.has_value();
    if (rounded) of.low = of.high = *rounded;
  }
  const bool was_truth = from == c10::ScalarType::Bool;
  if (to == c10::ScalarType::Bool) {
    if (of.is_constant()) return Description::constant(of.low != 0 ? 1 : 0);
    if (was_truth) return of;
    const Chance is_zero = chance_of_equal(of, Description::constant(0), from);
    Description made = Description::truth(1 - is_zero.share, is_zero.is_random);
    made.is_finite = of.is_finite;
    return made;
  }
  if (was_truth && !of.is_constant()) {
    Description made = Description::between(0, 1);
    made.is_whole = true;
    made.add_atom({1, of.mean, of.is_random()});
    made.add_atom({0, 1 - of.mean, of.is_random()});
    return made;
  }
  const bool was_integer = c10::isIntegralType(from, /*includeBool=*/true);
  of.is_whole = of.is_whole || was_integer;
  if (!c10::isIntegralType(to, /*includeBool=*/false)) return of;
  const bool is_below = of.spread == Description::Spread::even && !of.is_whole && of.low >= 0 &&
                        of.high == std::trunc(of.high) && of.high > of.low;
  of.low = std::trunc(of.low);
  // A uniform generator never draws its upper bound. If this bound is a whole number, each drawn
  // number therefore truncates to at most the bound minus 1.
  of.high = is_below ? of.high - 1 : std::trunc(of.high);
  for (Description::Atom& atom : of.atoms) atom.at = std::trunc(atom.at);
  if (of.atoms[0].at == of.atoms[1].at) {
    of.atoms = {Description::Atom{of.atoms[0].at, of.atom_share()}, {}};
  }
  of.is_whole = true;
  const double most =
      std::exp2(8 * static_cast<double>(c10::elementSize(to)) - (c10::isSignedType(to) ? 1 : 0));
  const bool fits = of.high < most && of.low >= (c10::isSignedType(to) ? -most : 0);
  const bool is_open = std::isinf(of.low) || std::isinf(of.high);
  return fits || is_open ? of : Description::of_type(to);
}

}  // namespace plimsoll::simulated
