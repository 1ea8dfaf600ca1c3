// A device tensor that a call writes: a result, or an argument.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace plimsoll::simulated {

constexpr std::size_t kNoResult = 99;

struct Written {
  at::Tensor tensor;
  std::size_t result = 0;   // which result it is; `kNoResult` if it is none
  std::size_t element = 0;  // its position, if it is in a list
};

}  // namespace plimsoll::simulated
