// Advances the host's random generator past the numbers that large tensors without contents would
// have taken.
//
// A program's later numbers, such as the order of its data or its dropped layers, are then the same
// as on a GPU.
#pragma once

#include "operation/call.h"

namespace plimsoll::simulated {

// Advances the generator of a call that fills a host tensor, as PyTorch's CPU kernel does.
void pass_host_numbers(const Call& call);

}  // namespace plimsoll::simulated
