// A tensor on a device that a call writes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace plimsoll::simulated {

constexpr std::size_t kNoResult = 99;

struct Written {
  at::Tensor tensor;
  std::size_t result = 0;   // the result's number; `kNoResult` for none
  std::size_t element = 0;  // the position, if that argument is a list
};

}  // namespace plimsoll::simulated
