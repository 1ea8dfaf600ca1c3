// Kernels on the coordinates of sparse COO tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "layouts/kernel.h"

namespace plimsoll::simulated {

// Returns how many different numbers `flat` contains, each below `kinds`, and writes them to its
// first elements.
std::int64_t find_distinct(const LayoutKernel& kernel, const at::Tensor& flat, double kinds);

}  // namespace plimsoll::simulated
