// Puts the simulated kernels in the dispatcher's place for CUDA.
#pragma once

#include <atomic>

namespace plimsoll::simulated {

void register_kernels();
// Of operations that were registered later, those with kernels for CUDA that need a GPU.
void take_over_new_operators();
// Whether operations were registered since that was last done.
inline std::atomic<bool> has_new_operators = false;

}  // namespace plimsoll::simulated
