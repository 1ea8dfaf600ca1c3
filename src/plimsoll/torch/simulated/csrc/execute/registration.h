// Puts the simulated kernels in the dispatcher's place for CUDA.
#pragma once

namespace plimsoll::simulated {

void register_kernels();
// Of operations that were registered later, those with kernels for CUDA that need a GPU.
void take_over_new_operators();

}  // namespace plimsoll::simulated
