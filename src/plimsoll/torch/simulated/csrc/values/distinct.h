// The number of different values among numbers that are only described.
#pragma once

#include <cstdint>

#include "values/description.h"

namespace plimsoll::simulated {

// For so many numbers of a description.
std::int64_t expected_distinct(const Description& of, std::int64_t count);

}  // namespace plimsoll::simulated
