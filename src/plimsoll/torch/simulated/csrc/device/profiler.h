// PyTorch's profiler on simulated GPUs: it says what memory operations take, and no times.
#pragma once

namespace plimsoll::simulated {

// For profiles with ProfilerActivity.CUDA.
void install_profiler();

}  // namespace plimsoll::simulated
