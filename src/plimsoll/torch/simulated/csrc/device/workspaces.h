// The workspaces of cuBLAS and cublasLt: PyTorch keeps one for each library handle and stream.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>

namespace plimsoll::simulated {

// Allocates a workspace of `bytes` bytes on the device's current stream. If `is_kept` is false, the
// function frees the workspace before it returns. If `is_kept` is true, the function keeps one
// workspace for each library, cuBLAS handle and stream, and allocates it only on the first call.
void take_workspace(c10::DeviceIndex device, bool is_lt, bool is_kept, std::size_t bytes);
// Frees all kept workspaces.
void clear_workspaces();

}  // namespace plimsoll::simulated
