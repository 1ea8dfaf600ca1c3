// Descriptions of numbers that are converted to another type.
#pragma once

#include <c10/core/ScalarType.h>

#include "values/description.h"

namespace plimsoll::simulated {

// Describes the numbers in another type: numbers lose their fractions in integers, truth becomes
// zeros and ones, and what does not fit may be anything.
Description in_type(Description of, c10::ScalarType from, c10::ScalarType to);

}  // namespace plimsoll::simulated
