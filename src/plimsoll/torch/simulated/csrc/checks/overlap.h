// PyTorch refuses to write to a tensor whose elements share memory with each other, or with an
// operand. This file repeats the check.
//
// For structured operations, PyTorch's function that computes the shapes makes the check.
// Call::infer runs that function on tensors that share storages in the same way as the arguments.
// For all other operations, the device's kernel may make the check
// (aten/src/ATen/MemoryOverlap.h). Traits in the tables of rules/ say which of these kernels do.
#pragma once

#include "operation/call.h"

namespace plimsoll::simulated {

// Throws PyTorch's error if a tensor that the call writes overlaps itself or another argument, and
// the operation's kernel refuses such an overlap.
void check_overlap(const Call& call);

}  // namespace plimsoll::simulated
