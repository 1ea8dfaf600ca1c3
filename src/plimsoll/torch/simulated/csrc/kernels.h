// Puts the simulated kernels in the dispatcher's place for CUDA.
#pragma once

namespace plimsoll::simulated {

void register_kernels();

}  // namespace plimsoll::simulated
