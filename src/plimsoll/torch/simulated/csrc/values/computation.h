// Computes an operation's values: the host runs the operation if it is cheap; otherwise the result
// is described.
#pragma once

#include "operation/call.h"

namespace plimsoll::simulated {

// Called after the call's results are allocated.
void compute_values(const Call& call);

}  // namespace plimsoll::simulated
