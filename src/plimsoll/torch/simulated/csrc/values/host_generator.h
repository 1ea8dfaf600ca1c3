// Advances the host's random generator by the numbers that filling a large host tensor would have
// taken, if the tensor had contents.
//
// The program's later random numbers, such as the order of its data, are then the same as on a GPU.
#pragma once

#include "operation/call.h"

namespace plimsoll::simulated {

// Advances the generator of a call that fills a host tensor, as PyTorch's CPU kernel would.
void pass_host_numbers(const Call& call);

}  // namespace plimsoll::simulated
