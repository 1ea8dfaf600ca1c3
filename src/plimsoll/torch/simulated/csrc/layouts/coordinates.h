// Helpers for the coordinates of elements in sparse COO tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "layouts/kernel.h"

namespace plimsoll::simulated {

// Returns how many different numbers `flat` contains, and moves them to its front. All numbers are
// below `kinds`.
std::int64_t find_distinct(const LayoutKernel& kernel, const at::Tensor& flat, double kinds);

}  // namespace plimsoll::simulated
