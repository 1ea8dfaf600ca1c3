// Values that the host reads from a device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace plimsoll::simulated {

// Returns the elements as a host tensor, for the program to use. Unknown elements are drawn, and
// noted as an assumption of `operation`.
at::Tensor read_by_host(const at::Tensor& tensor, std::uint32_t operation);

}  // namespace plimsoll::simulated
