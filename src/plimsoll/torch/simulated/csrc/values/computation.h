// Computes an operation's values: on the host if that is cheap. Otherwise the results are
// described.
#pragma once

#include "operation/call.h"

namespace plimsoll::simulated {

// Computes or describes the results of a call. The results must have been allocated.
void compute_values(const Call& call);

}  // namespace plimsoll::simulated
