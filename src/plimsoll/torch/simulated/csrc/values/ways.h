// The way by which an operation makes a tensor from its operands.
#pragma once

#include "operation/call.h"
#include "values/origin.h"
#include "values/written.h"

namespace plimsoll::simulated {

// The origin of what the call writes, from those of its operands. Random draws begin anew, and so
// does what is computed in a way that cannot be told apart from another.
Origin origin_of_written(const Call& call, const Written& written);

}  // namespace plimsoll::simulated
