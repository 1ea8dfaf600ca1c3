// The checks that PyTorch makes of an operation's tensors before any kernel runs: on which devices
// they are, whether they may be read, and whether what is written overlaps.
#pragma once

#include "operation/call.h"

namespace plimsoll::simulated {

// Raises PyTorch's error for tensors that the operation refuses.
void check_arguments(const Call& call);

}  // namespace plimsoll::simulated
