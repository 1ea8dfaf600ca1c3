// What an operation computes: the host runs it where that is cheap, and it is described elsewhere.
#pragma once

#include "operation/call.h"

namespace plimsoll::simulated {

// After the call's results are allocated.
void compute_values(const Call& call);

}  // namespace plimsoll::simulated
