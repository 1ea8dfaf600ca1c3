// The chances that one described number is less than a second one, or equal to it.
#pragma once

#include <c10/core/ScalarType.h>

#include "values/description.h"

namespace plimsoll::simulated {

// Returns the chance that a number of `one` is less than a number of `other`, or equal if
// `or_equal`.
Chance chance_of_less(const Description& one, const Description& other, bool or_equal,
                      bool are_integers);
// Returns the chance that both are equal; `type` is that of the first.
Chance chance_of_equal(const Description& one, const Description& other, c10::ScalarType type);
// Returns whether random draws alone decide the comparison.
bool is_random_pair(const Description& one, const Description& other);
// Returns the share of numbers within a limit: up to it, or from it on. Data of which nothing else
// is known is assumed to have magnitude one.
Chance chance_of_limit(const Description& of, double limit, bool is_low);

}  // namespace plimsoll::simulated
