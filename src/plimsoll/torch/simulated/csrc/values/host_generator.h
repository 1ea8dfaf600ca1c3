// Advances the host's random generator when a program fills a large host tensor with random
// numbers.
//
// In a simulation such a tensor has no contents, so no kernel draws the numbers. The generator
// still has to advance as if a kernel drew them. Otherwise the program's later random numbers,
// which decide for example the order of its data, would differ from those of a run on a GPU.
#pragma once

#include "operation/call.h"

namespace plimsoll::simulated {

// Advances the generator from which `call` draws, as far as PyTorch's CPU kernel would advance it.
// The call fills a host tensor.
void pass_host_numbers(const Call& call);

}  // namespace plimsoll::simulated
