// PyTorch's checks of an operation's tensors before any kernel runs: their devices, whether they
// may be read, and whether written tensors overlap.
#pragma once

#include "operation/call.h"

namespace plimsoll::simulated {

// Raises PyTorch's error for tensors that the operation refuses.
void check_arguments(const Call& call);

}  // namespace plimsoll::simulated
