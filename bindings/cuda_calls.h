// The simulated CUDA driver of this process, for the functions of CUDA's runtime.
#pragma once

#include <cstddef>

#include "calls.h"

namespace plimsoll::python {

// Functions of the simulated GPUs' library, which keeps the current device of each thread.
struct SimulatedRuntime {
  int (*current_device)() = nullptr;
  int (*set_device)(int) = nullptr;
  void (*use)(int) = nullptr;  // makes the device's context, at the first call
  int (*pin)(void*, std::size_t) = nullptr;
  int (*unpin)(void*) = nullptr;
};

const cuda::DriverCalls& simulated_driver();
// The functions are null until simulated GPUs answer the driver API.
const SimulatedRuntime& simulated_runtime();

}  // namespace plimsoll::python
