// Checks the element types of an operation's tensors as PyTorch's CUDA kernels do.
#pragma once

#include "operation/call.h"

namespace plimsoll::simulated {

// Throws PyTorch's error if the operation has no CUDA kernel for its tensors' element types, or if
// the kernel needs tensors of one type and gets several.
void check_types(Call& call);

// Throws PyTorch's error if the indices of an embedding are neither int32 nor int64.
void check_embedding_indices(const at::Tensor& indices);

}  // namespace plimsoll::simulated
