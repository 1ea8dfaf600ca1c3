// Host functions that compute operations which only GPUs have.
#pragma once

#include <ATen/core/stack.h>

#include "operation/call.h"

namespace plimsoll::simulated {

// Takes the call's arguments on the host from the stack, and pushes the operation's results.
using Substitute = void (*)(const Call&, torch::jit::Stack&);
// Returns null if the host has the operation itself, or nothing equivalent.
Substitute find_substitute(const Call& call);

}  // namespace plimsoll::simulated
