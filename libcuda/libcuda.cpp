// A library with names of libcuda.so.1 for programs on simulated GPUs: each function calls the
// table of plimsoll._core. Loaded for the whole process, it comes before a libcuda.so.1 that the
// machine has, so an extension that is linked to libcuda.so.1 reaches the simulated GPUs.
#include "calls.h"

#define PLIMSOLL_EXPORT extern "C" __attribute__((visibility("default")))

namespace plimsoll::cuda {
namespace {

constexpr Result kNotInitialized = 3;
const DriverCalls* calls = nullptr;

}  // namespace

// Sets the table, which is never released.
PLIMSOLL_EXPORT void plimsoll_set_cuda_calls(const DriverCalls* table) { calls = table; }

#define PLIMSOLL_CUDA_CALL(name, parameters, arguments)                \
  PLIMSOLL_EXPORT Result name parameters {                             \
    return calls == nullptr ? kNotInitialized : calls->name arguments; \
  }
#include "calls.inc"
#undef PLIMSOLL_CUDA_CALL

}  // namespace plimsoll::cuda
