// Estimates how many different values occur among numbers of which only a description is known.
#pragma once

#include <cstdint>

#include "values/description.h"

namespace plimsoll::simulated {

// Returns the expected number of different values among `count` numbers of this description.
std::int64_t expected_distinct(const Description& of, std::int64_t count);

}  // namespace plimsoll::simulated
