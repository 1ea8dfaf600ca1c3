// The workspaces of cuBLAS and cublasLt: PyTorch keeps one for each library handle and stream.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>

namespace plimsoll::simulated {

// Allocates a workspace of `bytes` bytes on the device's current stream. With `is_kept`, the
// workspace stays allocated for later calls, and nothing is allocated if an earlier call has kept
// one for this library, cuBLAS handle and stream. Without `is_kept`, the workspace is freed before
// this function returns.
void take_workspace(c10::DeviceIndex device, bool is_lt, bool is_kept, std::size_t bytes);
// Frees all kept workspaces.
void clear_workspaces();

}  // namespace plimsoll::simulated
