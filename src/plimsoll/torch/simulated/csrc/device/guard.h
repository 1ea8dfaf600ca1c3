// The device guard of simulated CUDA devices, streams and events. It replaces PyTorch's own.
#pragma once

namespace plimsoll::simulated {

// Installs the guard and the allocator. Call it again once PyTorch is loaded, because a CUDA build
// of PyTorch then installs its own guard.
void install_guard();

}  // namespace plimsoll::simulated
