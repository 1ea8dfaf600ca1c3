// Checks an operation's tensors as PyTorch does before any kernel runs: their devices, their
// element types, whether their memory may be accessed, and whether they overlap.
#pragma once

#include "operation/call.h"

namespace plimsoll::simulated {

// Throws PyTorch's error if the operation refuses its tensors.
void check_arguments(Call& call);

}  // namespace plimsoll::simulated
