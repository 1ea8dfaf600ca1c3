// Returns the values of a device tensor to a program that reads the tensor on the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace plimsoll::simulated {

// Returns the tensor's elements as a host tensor, for the program to use. Draws unknown elements at
// random; the report then lists an assumption for `operation`, the id of an operation's name.
at::Tensor read_by_host(const at::Tensor& tensor, std::uint32_t operation);

}  // namespace plimsoll::simulated
