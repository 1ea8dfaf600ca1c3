// How many of numbers that nobody knows differ.
#pragma once

#include <cstdint>

#include "values/description.h"

namespace plimsoll::simulated {

// Of so many numbers of a description.
std::int64_t expected_distinct(const Description& of, std::int64_t count);

}  // namespace plimsoll::simulated
