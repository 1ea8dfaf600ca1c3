// Makes PyTorch's profiler work on simulated GPUs. The profiler reports memory operations, but no
// times.
#pragma once

namespace plimsoll::simulated {

// Registers the stubs that the profiler calls for ProfilerActivity.CUDA.
void install_profiler();

}  // namespace plimsoll::simulated
