// Descriptions of numbers after conversion to another type.
#pragma once

#include <c10/core/ScalarType.h>

#include "values/description.h"

namespace plimsoll::simulated {

// Describes the numbers in another type: integers drop fractions, truth values become zeros and
// ones, and numbers that do not fit may become anything.
Description in_type(Description of, c10::ScalarType from, c10::ScalarType to);

}  // namespace plimsoll::simulated
