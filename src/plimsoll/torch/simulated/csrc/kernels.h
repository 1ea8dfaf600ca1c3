// Puts the simulated kernels in the dispatcher's place for CUDA.
#pragma once

#include <torch/library.h>

#include <string>
#include <vector>

namespace plimsoll::simulated {

// `with_cuda_kernels`: operations that have a CUDA kernel of their own in a CUDA build, though a
// build without CUDA would compose them of others.
void register_kernels(const std::vector<std::string>& with_cuda_kernels);

}  // namespace plimsoll::simulated
