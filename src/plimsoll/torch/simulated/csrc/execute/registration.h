// Registers the simulated kernels with PyTorch's dispatcher, in place of CUDA's kernels.
#pragma once

namespace plimsoll::simulated {

void register_kernels();
// Simulates operations that were registered since the last call and whose own kernels need a GPU.
void take_over_new_operators();

}  // namespace plimsoll::simulated
