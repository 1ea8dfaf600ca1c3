// A table of pointers to the functions that implement NVIDIA's driver API for simulated GPUs.
// calls.inc lists these functions, and plimsoll._core fills the table. For each function in the
// list, libcuda.cpp exports a function of the same name, which calls the function in the table.
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
