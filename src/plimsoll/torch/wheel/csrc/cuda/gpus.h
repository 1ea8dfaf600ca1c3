// The simulated GPUs behind the CUDA functions that PyTorch's allocator calls.
//
// `runtime.cpp` implements functions of CUDA's runtime, `driver_functions.cpp` implements functions
// of CUDA's driver, and `nvml.cpp` implements NVML's functions for the memory use of a process. The
// dynamic linker finds these functions before those of NVIDIA's libraries, so libc10_cuda calls
// them.
#pragma once

#include <cstdint>

#include "plimsoll/wheel_api.h"

#pragma GCC visibility push(default)

namespace plimsoll::wheel {

// The number of GPUs that PyTorch sees.
inline constexpr int kGpus = 64;

// One simulated GPU. Without a driver, every call succeeds and does nothing.
struct Gpu {
  const plimsoll_driver_api* api = nullptr;
  plimsoll_driver* driver = nullptr;
  int number = 0;    // each new driver gets a new number; 0 without a driver
  int captures = 0;  // number of captures of CUDA graphs under way

  // Calls a function of the driver's table, and returns CUDA's code for the status.
  template <typename... Taken, typename... Given>
  int call(int (*plimsoll_driver_api::*function)(plimsoll_driver*, Taken...), Given... given) {
    return api == nullptr ? 0 : cuda_code((api->*function)(driver, given...));
  }

  // Returns CUDA's code for a status; runtime and driver use the same codes.
  static int cuda_code(int status);
};

[[nodiscard]] Gpu& gpu(int number);
// Returns the GPU that this thread selected last with cudaSetDevice.
[[nodiscard]] Gpu& current_gpu();
// Returns the GPU that owns an address or a handle. It need not be the current GPU: PyTorch also
// frees memory of other GPUs.
[[nodiscard]] Gpu& owner_of(std::uint64_t address);
void note_owner(std::uint64_t address, Gpu& gpu);

// A stream's handle is its number, shifted by this many bits: PyTorch uses the lowest bits itself,
// and CUDA reserves the handles 1 and 2.
inline constexpr int kStreamShift = 4;
template <typename Handle>
[[nodiscard]] Handle handle_of(std::uint64_t stream) {
  return reinterpret_cast<Handle>(stream << kStreamShift);
}
[[nodiscard]] inline std::uint64_t stream_of(const void* handle) {
  return reinterpret_cast<std::uint64_t>(handle) >> kStreamShift;
}

// Returns the driver function of this name; null for a function that PyTorch can do without.
[[nodiscard]] void* driver_function(const char* name);

}  // namespace plimsoll::wheel

#pragma GCC visibility pop
