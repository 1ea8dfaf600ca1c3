// The random numbers of the host that large tensors without contents would have taken.
//
// A program's later numbers, such as the order of its data or which layers it drops, are then those
// that it has on a GPU.
#pragma once

#include "operation/call.h"

namespace plimsoll::simulated {

// Moves the generator of a call that fills a tensor of the host on, as PyTorch's kernel for CPUs
// does.
void pass_host_numbers(const Call& call);

}  // namespace plimsoll::simulated
