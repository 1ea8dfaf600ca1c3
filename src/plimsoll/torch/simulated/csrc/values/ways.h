// Identifies how an operation makes a tensor from its operands.
#pragma once

#include "operation/call.h"
#include "values/origin.h"
#include "values/written.h"

namespace plimsoll::simulated {

// Returns the origin of the call's result, from those of its operands. Random draws get a new
// origin, and so do results of a computation that plimsoll cannot distinguish from a different one.
Origin origin_of_written(const Call& call, const Written& written);

}  // namespace plimsoll::simulated
