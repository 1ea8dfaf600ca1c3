// Returns the values of a device tensor to a program that reads the tensor on the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace plimsoll::simulated {

// Returns the tensor's elements as a host tensor, for the program to use. Unknown elements are
// drawn at random, and `operation` gets an assumption in the report.
at::Tensor read_by_host(const at::Tensor& tensor, std::uint32_t operation);

}  // namespace plimsoll::simulated
