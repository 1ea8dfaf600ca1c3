// Runs an operation on simulated tensors. It checks the arguments, calls the operation's rule (a
// function that appends steps; see operation/rule_table.h), and runs these steps.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace plimsoll::simulated {

// The kernel that PyTorch calls for every simulated operation on CUDA tensors.
void run_simulated(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace plimsoll::simulated
