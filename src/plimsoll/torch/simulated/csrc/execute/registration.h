// Puts the simulated kernels in the dispatcher's place for CUDA.
#pragma once

namespace plimsoll::simulated {

void register_kernels();
// Takes over operations that were registered later and have kernels that need a GPU.
void take_over_new_operators();

}  // namespace plimsoll::simulated
