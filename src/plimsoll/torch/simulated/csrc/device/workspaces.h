// The workspaces of cuBLAS and cublasLt: PyTorch keeps one for each library handle and stream.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>

namespace plimsoll::simulated {

// Takes the memory on the device's current stream, unless it is kept from before; `is_kept`: for
// later calls, else it is given back at once.
void take_workspace(c10::DeviceIndex device, bool is_lt, bool is_kept, std::size_t bytes);
// Gives back those that are kept.
void clear_workspaces();

}  // namespace plimsoll::simulated
