// What kernels of sparse tensors in COO layout do with coordinates.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "layouts/kernel.h"

namespace plimsoll::simulated {

// How many of the numbers in `flat`, each below `kinds`, differ. Writes those to the first
// elements.
std::int64_t find_distinct(const LayoutKernel& kernel, const at::Tensor& flat, double kinds);

}  // namespace plimsoll::simulated
