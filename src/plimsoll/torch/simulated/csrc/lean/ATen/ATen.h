// The compiler finds this header before PyTorch's header of the same name, which includes those of
// all 3,000 operations. PyTorch headers that we include need it (c10d's Work.hpp), but only for the
// class Tensor.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
