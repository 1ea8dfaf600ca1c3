// The functions of CUDA's driver and runtime that simulated GPUs answer.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace plimsoll::python {

// Maps the name of a function, as CUDA's libraries export it, to its address.
using CudaFunctions = std::map<std::string, std::uintptr_t, std::less<>>;

const CudaFunctions& cuda_functions();

}  // namespace plimsoll::python
