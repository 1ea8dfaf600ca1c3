// The properties of a GPU chip: the row of data/chips.csv for its compute capability.
#pragma once

#include <cstdint>

#include "device/runtime.h"

namespace plimsoll::simulated {

// A row of data/chips.csv; the file explains its columns.
struct Chip {
  std::int64_t major, minor, lanes, tensor_cores, double_rate, link_bytes_per_ns,
      network_gbit_per_s, warp_groups, measured, has_bfloat16, flash, wide_flash_gradients,
      aligned_halves, aligned_floats, cudnn_width, cudnn_wide_keys, cudnn_first_since,
      large_workspace_since, grouped_products;
};

// Returns the row for a device's chip. If the table lacks the chip, the nearest row is returned,
// and the report says so.
const Chip& chip_of(const DeviceProperties& device);

}  // namespace plimsoll::simulated
