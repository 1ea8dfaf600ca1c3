// The chances that one number is less than another, or equal to it. Only bounds and a distribution
// of each number are known (description.h).
#pragma once

#include <c10/core/ScalarType.h>

#include "values/description.h"

namespace plimsoll::simulated {

// A program compares with a number up to this size to find out whether another number is zero.
constexpr double kAlmostZero = 1e-5;

// Returns the chance that a number drawn from `one` is less than a number drawn from `other`. With
// `or_equal`, equal numbers count too. With `is_single`, the program compares one number: if it
// compares it with a tolerance, as a solver does, the number is hardly ever that close to zero.
Chance chance_of_less(const Description& one, const Description& other, bool or_equal,
                      bool are_integers, bool is_single = false);
// Returns the chance that a number drawn from `one` equals a number drawn from `other`. `type` is
// the type of the numbers of `one`.
Chance chance_of_equal(const Description& one, const Description& other, c10::ScalarType type);
// Returns whether only random draws, and not data, decide a comparison of numbers from `one` with
// numbers from `other`.
bool is_random_pair(const Description& one, const Description& other);
// If `is_low`, returns the share of the numbers of `of` that are at most `limit`; otherwise the
// share of the numbers that are at least `limit`. If the program's data decide the numbers, their
// distribution is unknown. Then the function assumes a uniform distribution between the bounds. If
// a bound is infinite, it assumes a standard normal distribution, cut at the finite bound if there
// is one.
Chance chance_of_limit(const Description& of, double limit, bool is_low);

}  // namespace plimsoll::simulated
