// Describes numbers after a conversion to another type.
#pragma once

#include <c10/core/ScalarType.h>

#include "values/description.h"

namespace plimsoll::simulated {

// Describes numbers of type `from` after conversion to type `to`. Conversion to an integer type
// drops fractions. Truth values become zeros and ones. Numbers that do not fit into `to` may become
// anything.
Description in_type(Description of, c10::ScalarType from, c10::ScalarType to);

}  // namespace plimsoll::simulated
