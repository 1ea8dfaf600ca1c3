// How likely numbers that nobody computed are less than others, or equal.
#pragma once

#include <c10/core/ScalarType.h>

#include "values/description.h"

namespace plimsoll::simulated {

// The chance that a number of the first is less than one of the second; or as large.
Chance chance_of_less(const Description& one, const Description& other, bool or_equal,
                      bool are_integers);
// `type`: of the first.
Chance chance_of_equal(const Description& one, const Description& other, c10::ScalarType type);
// The share that random draws alone decide.
bool is_random_pair(const Description& one, const Description& other);
// The share that a limit takes in: the numbers up to it, or from it on. Data that nothing else is
// known of is taken to be of the size of one.
Chance chance_of_limit(const Description& of, double limit, bool is_low);

}  // namespace plimsoll::simulated
