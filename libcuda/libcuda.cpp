// A replacement for libcuda.so.1 in programs that run on simulated GPUs. It exports functions of
// NVIDIA's driver API, and each of them calls plimsoll._core through a table. plimsoll loads this
// library with RTLD_GLOBAL, so an extension that is linked to libcuda.so.1 finds these functions
// first, even on a machine that has NVIDIA's libcuda.so.1.
#include "calls.h"

#define PLIMSOLL_EXPORT extern "C" __attribute__((visibility("default")))

namespace plimsoll::cuda {
namespace {

constexpr Result kNotInitialized = 3;
const DriverCalls* calls = nullptr;

}  // namespace

// Sets the table of functions. The caller must never release it.
PLIMSOLL_EXPORT void plimsoll_set_cuda_calls(const DriverCalls* table) { calls = table; }

#define PLIMSOLL_CUDA_CALL(name, parameters, arguments)                \
  PLIMSOLL_EXPORT Result name parameters {                             \
    return calls == nullptr ? kNotInitialized : calls->name arguments; \
  }
#include "calls.inc"
#undef PLIMSOLL_CUDA_CALL

}  // namespace plimsoll::cuda
