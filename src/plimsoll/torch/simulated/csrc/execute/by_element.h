// Operations on lists of tensors (`_foreach_*`). PyTorch has kernels that compute whole lists, and
// uses them only for lists whose tensors are alike. For other lists it calls another operation for
// each element, which may be on the host.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "operation/operation.h"

namespace plimsoll::simulated {

// Runs an operation on lists element by element, and returns true, if PyTorch does so. Otherwise
// does nothing.
bool run_by_element(const c10::OperatorHandle& op, const OperationInfo& info,
                    torch::jit::Stack* stack);

}  // namespace plimsoll::simulated
