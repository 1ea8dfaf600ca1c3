// The device guard of CUDA: devices, streams and events, put in PyTorch's place for it.
#pragma once

namespace plimsoll::simulated {

// Installs the guard and the allocator. Call it again once PyTorch is loaded, because a CUDA build
// then sets its own.
void install_guard();

}  // namespace plimsoll::simulated
