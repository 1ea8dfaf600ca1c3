// The functions of NVIDIA's driver API that simulated GPUs answer, as one table: its rows are in
// calls.inc. plimsoll._core makes the table, and libcuda.cpp exports a function for each row.
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
