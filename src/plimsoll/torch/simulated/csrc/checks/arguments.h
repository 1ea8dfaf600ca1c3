// The checks of an operation's tensors that PyTorch makes before any kernel runs: devices, access,
// overlap.
#pragma once

#include "operation/call.h"

namespace plimsoll::simulated {

// Throws PyTorch's error if the operation refuses its tensors.
void check_arguments(const Call& call);

}  // namespace plimsoll::simulated
