// The simulated GPU behind the CUDA functions that PyTorch's allocator calls.
//
// `runtime.cpp` offers CUDA's runtime, `driver_functions.cpp` its driver and `nvml.cpp` the count
// of a process's memory. The three libraries that PyTorch loads hold these files; the program that
// drives PyTorch reaches the GPU through the functions below.
#pragma once

#include "plimsoll/simulated/driver.h"

#define PLIMSOLL_ORACLE __attribute__((visibility("default")))

// Makes the GPU, which lasts as long as the process. Called before PyTorch's first call.
PLIMSOLL_ORACLE void oracle_make_gpu(plimsoll::Bytes memory);
PLIMSOLL_ORACLE plimsoll::SimulatedDriver& oracle_gpu();
// Whether every stream says that a graph captures it.
PLIMSOLL_ORACLE void oracle_set_capturing(bool capturing);

// The number by which CUDA's runtime and its driver both report a status.
int oracle_code(plimsoll::Status status);
// The driver's function of this name; null if PyTorch can do without it.
void* oracle_driver_function(const char* name);
