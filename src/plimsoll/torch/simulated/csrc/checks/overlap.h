// PyTorch refuses to write to a tensor whose elements share memory with each other, or with an
// operand. This file repeats the check.
//
// For structured operations, the function that computes the shapes also makes the check;
// Call::infer runs this function on tensors that share storages as the arguments do. For all other
// operations, the device's kernel makes the check (aten/src/ATen/MemoryOverlap.h). Traits in the
// tables of rules/ say which kernels make it.
#pragma once

#include "operation/call.h"

namespace plimsoll::simulated {

// Throws PyTorch's error if the operation's kernel refuses overlapping arguments.
void check_overlap(const Call& call);

}  // namespace plimsoll::simulated
