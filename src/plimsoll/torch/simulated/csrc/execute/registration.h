// Registers the simulated kernels in the dispatcher, in place of CUDA's.
#pragma once

namespace plimsoll::simulated {

void register_kernels();
// Registers kernels for operations that were registered later and whose own kernels need a GPU.
void take_over_new_operators();

}  // namespace plimsoll::simulated
