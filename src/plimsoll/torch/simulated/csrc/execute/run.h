// Runs an operation: its checks, its rule, and then the rule's steps.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace plimsoll::simulated {

// The kernel for every operation on CUDA tensors.
void run_simulated(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace plimsoll::simulated
