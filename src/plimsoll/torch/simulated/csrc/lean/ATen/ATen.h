// An empty stand-in for PyTorch's header of this name, which includes the headers of all 3,000
// operations and takes long to compile. The compiler finds this file before PyTorch's. The PyTorch
// headers that plimsoll includes, such as c10d's Work.hpp, need only the class Tensor from ATen.h.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
