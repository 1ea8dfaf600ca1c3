// The device guard of simulated CUDA devices, streams and events. It replaces PyTorch's own.
#pragma once

namespace plimsoll::simulated {

// Installs the guard and the allocator. A CUDA build of PyTorch installs its own guard while it is
// loaded, so call this function again afterwards.
void install_guard();

}  // namespace plimsoll::simulated
