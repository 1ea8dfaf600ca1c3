// Overlapping memory: PyTorch refuses to write a tensor whose elements share memory with each
// other, or with an operand.
//
// Structured operations compare their tensors in the function that computes the shapes, which
// Call::infer runs on tensors that share storages as the arguments do. All other operations compare
// them in the device's kernel (aten/src/ATen/MemoryOverlap.h); traits in the tables of rules/ say
// which do.
#pragma once

#include "operation/call.h"

namespace plimsoll::simulated {

// Raises PyTorch's error if the operation's kernel refuses its arguments.
void check_overlap(const Call& call);

}  // namespace plimsoll::simulated
