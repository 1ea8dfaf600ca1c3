// Helpers for the coordinates of elements in sparse COO tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "layouts/kernel.h"

namespace plimsoll::simulated {

// Moves the distinct numbers in `flat` to its front, and returns how many there are. All numbers
// are below `kinds`.
std::int64_t find_distinct(const LayoutKernel& kernel, const at::Tensor& flat, double kinds);

}  // namespace plimsoll::simulated
