// Host functions for operations that PyTorch implements on GPUs only.
#pragma once

#include <ATen/core/stack.h>

#include "operation/call.h"

namespace plimsoll::simulated {

// Pops the call's arguments, which are host tensors, and pushes the operation's results.
using Substitute = void (*)(const Call&, torch::jit::Stack&);
// Returns the substitute for a call; null if there is none. Most operations need none, because
// PyTorch implements them on the host as well. Some GPU-only operations have none yet.
Substitute find_substitute(const Call& call);

}  // namespace plimsoll::simulated
