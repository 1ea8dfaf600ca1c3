// Runs an operation: first its checks, then its rule, then the steps that the rule appended.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace plimsoll::simulated {

// The kernel that PyTorch calls for every simulated operation on CUDA tensors.
void run_simulated(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace plimsoll::simulated
