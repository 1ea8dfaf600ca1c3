// Values that the host reads from a device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace plimsoll::simulated {

// The elements, for the program to go on with: a tensor of the host. What is not known is drawn,
// and noted as an assumption of `operation`.
at::Tensor read_by_host(const at::Tensor& tensor, std::uint32_t operation);

}  // namespace plimsoll::simulated
