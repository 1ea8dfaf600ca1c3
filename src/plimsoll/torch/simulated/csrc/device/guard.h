// The device guard of CUDA: devices, streams and events, put in PyTorch's place for it.
#pragma once

namespace plimsoll::simulated {

// Installs the guard and the allocator. Called again once PyTorch is loaded: a CUDA build sets its
// own then.
void install_guard();

}  // namespace plimsoll::simulated
