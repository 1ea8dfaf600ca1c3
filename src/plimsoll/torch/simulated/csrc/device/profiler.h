// PyTorch's profiler on simulated GPUs: it reports memory operations, and no times.
#pragma once

namespace plimsoll::simulated {

// Registers it for profiles with ProfilerActivity.CUDA.
void install_profiler();

}  // namespace plimsoll::simulated
