// Describes numbers after a conversion to another type.
#pragma once

#include <c10/core/ScalarType.h>

#include "values/description.h"

namespace plimsoll::simulated {

// Describes numbers of type `from` after conversion to type `to`. Integers drop fractions, truth
// values become zeros and ones, and numbers that do not fit into the type may become anything.
Description in_type(Description of, c10::ScalarType from, c10::ScalarType to);

}  // namespace plimsoll::simulated
