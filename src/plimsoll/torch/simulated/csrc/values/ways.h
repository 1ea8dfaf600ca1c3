// Computes the Origin (origin.h) of a tensor that an operation writes. An Origin identifies the
// operation and the operation's arguments.
#pragma once

#include "operation/call.h"
#include "values/origin.h"
#include "values/written.h"

namespace plimsoll::simulated {

// Returns the origin of a tensor that the call writes, computed from the origins of the operands.
// Returns a new origin if the call draws random numbers, works on lists of tensors, or has an
// argument that plimsoll cannot identify.
Origin origin_of_written(const Call& call, const Written& written);

}  // namespace plimsoll::simulated
