// Identifies how an operation computes a tensor from its operands, as an Origin (origin.h).
#pragma once

#include "operation/call.h"
#include "values/origin.h"
#include "values/written.h"

namespace plimsoll::simulated {

// Returns the origin of a tensor that the call writes, from the origins of the operands. A new
// origin is returned for random draws, and if plimsoll cannot tell two such computations apart.
Origin origin_of_written(const Call& call, const Written& written);

}  // namespace plimsoll::simulated
