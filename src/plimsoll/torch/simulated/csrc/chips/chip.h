// Properties of the chip: a row of data/chips.csv for its compute capability.
#pragma once

#include <cstdint>

#include "device/runtime.h"

namespace plimsoll::simulated {

// The columns of data/chips.csv, which explains them.
struct Chip {
  std::int64_t major, minor, lanes, tensor_cores, double_rate, link_bytes_per_ns, warp_groups,
      measured, has_bfloat16, flash, wide_flash_gradients, aligned_halves, aligned_floats,
      cudnn_width, cudnn_wide_keys, cudnn_first_since, large_workspace_since, grouped_products;
};

// Returns the row of a device's chip. A chip that the table lacks gets the nearest row, and the
// report says so.
const Chip& chip_of(const DeviceProperties& device);

}  // namespace plimsoll::simulated
