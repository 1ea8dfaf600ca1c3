// Computes the values of an operation's results on the host if that is cheap. Otherwise only
// describes the results by bounds and a distribution (description.h).
#pragma once

#include "operation/call.h"

namespace plimsoll::simulated {

// Computes or describes the results of a call. The results must have been allocated.
void compute_values(const Call& call);

}  // namespace plimsoll::simulated
