// The GPUs behind the CUDA functions that PyTorch's allocator calls.
//
// `runtime.cpp` implements CUDA's runtime, `driver_functions.cpp` its driver and `nvml.cpp` the
// count of a process's memory. The linker finds them before NVIDIA's libraries, so libc10_cuda uses
// them.
#pragma once

#include <cstdint>

#include "plimsoll/wheel_api.h"

#pragma GCC visibility push(default)

namespace plimsoll::wheel {

// The number of GPUs that PyTorch sees.
inline constexpr int kGpus = 64;

// One of plimsoll's GPUs. Without a driver every call succeeds and does nothing.
struct Gpu {
  const plimsoll_driver_api* api = nullptr;
  plimsoll_driver* driver = nullptr;
  int number = 0;    // the driver's number, over all GPUs; an event belongs to one driver
  int captures = 0;  // captures under way

  // Calls a function of the driver's table; returns CUDA's code for its status.
  template <typename... Taken, typename... Given>
  int call(int (*plimsoll_driver_api::*function)(plimsoll_driver*, Taken...), Given... given) {
    return api == nullptr ? 0 : cuda_code((api->*function)(driver, given...));
  }

  // Returns the code by which CUDA's runtime and its driver both report a status.
  static int cuda_code(int status);
};

[[nodiscard]] Gpu& gpu(int number);
// Returns the GPU that this thread selected last.
[[nodiscard]] Gpu& current_gpu();
// Returns the GPU that owns this address or handle: PyTorch frees memory whatever the current GPU
// is.
[[nodiscard]] Gpu& owner_of(std::uint64_t address);
void note_owner(std::uint64_t address, Gpu& gpu);

// PyTorch uses the lowest bits of a stream's handle itself, and CUDA reserves the handles 1 and 2.
inline constexpr int kStreamShift = 4;
template <typename Handle>
[[nodiscard]] Handle handle_of(std::uint64_t stream) {
  return reinterpret_cast<Handle>(stream << kStreamShift);
}
[[nodiscard]] inline std::uint64_t stream_of(const void* handle) {
  return reinterpret_cast<std::uint64_t>(handle) >> kStreamShift;
}

// Returns the driver's function of this name; null if PyTorch can do without it.
[[nodiscard]] void* driver_function(const char* name);

}  // namespace plimsoll::wheel

#pragma GCC visibility pop
