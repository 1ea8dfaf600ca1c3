// Overlapping memory: PyTorch refuses to write a tensor whose elements share memory with each
// other, or with an operand.
//
// Structured operations compare their tensors in the function that finds the shapes, which
// Call::infer runs on tensors that share storages as the arguments do. The other operations compare
// them in the kernel of the device (aten/src/ATen/MemoryOverlap.h); traits in the tables of rules/
// say which.
#pragma once

#include "operation/call.h"

namespace plimsoll::simulated {

// Raises PyTorch's error if the operation's kernel refuses its arguments.
void check_overlap(const Call& call);

}  // namespace plimsoll::simulated
