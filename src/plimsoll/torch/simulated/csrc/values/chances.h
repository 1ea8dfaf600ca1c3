// The chances that one described number is less than another, or equal to it.
#pragma once

#include <c10/core/ScalarType.h>

#include "values/description.h"

namespace plimsoll::simulated {

// Returns the chance that a number of `one` is less than a number of `other`; with `or_equal`, less
// or equal.
Chance chance_of_less(const Description& one, const Description& other, bool or_equal,
                      bool are_integers);
// Returns the chance that a number of `one` equals a number of `other`; `type` is the type of
// `one`.
Chance chance_of_equal(const Description& one, const Description& other, c10::ScalarType type);
// Returns whether only random draws, and not data, decide a comparison of the two.
bool is_random_pair(const Description& one, const Description& other);
// Returns the share of numbers up to a limit if `is_low`, or else from the limit on. Data without a
// known distribution is assumed to be around one in size.
Chance chance_of_limit(const Description& of, double limit, bool is_low);

}  // namespace plimsoll::simulated
