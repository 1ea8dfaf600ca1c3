// Functions of the host with the meaning of operations that only GPUs have.
#pragma once

#include <ATen/core/stack.h>

#include "operation/call.h"

namespace plimsoll::simulated {

// Takes the call's arguments on the host from the stack, and leaves what the operation computes.
using Substitute = void (*)(const Call&, torch::jit::Stack&);
// None where the host has the operation itself, or nothing like it.
Substitute find_substitute(const Call& call);

}  // namespace plimsoll::simulated
