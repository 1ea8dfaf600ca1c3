// The number of different values among described numbers.
#pragma once

#include <cstdint>

#include "values/description.h"

namespace plimsoll::simulated {

// Returns the expected number for `count` numbers of a description.
std::int64_t expected_distinct(const Description& of, std::int64_t count);

}  // namespace plimsoll::simulated
