// A table of pointers to functions. They implement NVIDIA's driver API for simulated GPUs.
// calls.inc lists the functions, plimsoll._core fills the table, and libcuda.cpp exports a function
// for each.
#pragma once

#include <cstddef>

#include "plimsoll/driver/cuda_api.h"

namespace plimsoll::cuda {

struct DriverCalls {
#define PLIMSOLL_CUDA_CALL(name, parameters, arguments) Result(*name) parameters = nullptr;
#include "calls.inc"
#undef PLIMSOLL_CUDA_CALL
};

}  // namespace plimsoll::cuda
