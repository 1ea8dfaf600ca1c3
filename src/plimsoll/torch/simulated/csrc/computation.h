// What an operation computes, where its tensors are small enough to have values: the host runs it.
#pragma once

#include "call.h"

namespace plimsoll::simulated {

// After the call's results are allocated. What cannot be computed gets placeholders.
void compute_values(const Call& call);

}  // namespace plimsoll::simulated
