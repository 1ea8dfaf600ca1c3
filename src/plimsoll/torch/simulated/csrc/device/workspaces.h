// The workspaces of cuBLAS and cublasLt: PyTorch keeps one for each library handle and stream.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>

namespace plimsoll::simulated {

// Takes a workspace on the device's current stream, unless the stream already keeps one. With
// `is_kept`, the workspace stays for later calls; otherwise it is freed at once.
void take_workspace(c10::DeviceIndex device, bool is_lt, bool is_kept, std::size_t bytes);
// Frees all kept workspaces.
void clear_workspaces();

}  // namespace plimsoll::simulated
