// How many different values there are among numbers that are only described.
#pragma once

#include <cstdint>

#include "values/description.h"

namespace plimsoll::simulated {

// Returns the expected number of different values among `count` numbers of this description.
std::int64_t expected_distinct(const Description& of, std::int64_t count);

}  // namespace plimsoll::simulated
