// Host functions for operations that PyTorch implements on GPUs only.
#pragma once

#include <ATen/core/stack.h>

#include "operation/call.h"

namespace plimsoll::simulated {

// Pops the call's arguments, which are host tensors, and pushes the operation's results.
using Substitute = void (*)(const Call&, torch::jit::Stack&);
// Returns the substitute for a call. Returns null if the host has the operation itself, or if it
// has nothing equivalent.
Substitute find_substitute(const Call& call);

}  // namespace plimsoll::simulated
