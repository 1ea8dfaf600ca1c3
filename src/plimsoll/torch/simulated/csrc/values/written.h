// A device tensor that a call writes: a result, or an argument.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace plimsoll::simulated {

constexpr std::size_t kNoResult = 99;

struct Written {
  at::Tensor tensor;
  std::size_t result = 0;   // the result's index; `kNoResult` for an argument
  std::size_t element = 0;  // the tensor's position, if the result or argument is a list
};

}  // namespace plimsoll::simulated
