// A reduction's partial results, for the rules of kernels that reduce on the way.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/OptionalArrayRef.h>

#include <cstddef>

#include "operation/call.h"

namespace plimsoll::simulated {

struct Accumulation {
  std::size_t bytes = 4;  // of one partial result
  int input_vector = 4;   // inputs that a thread loads at once
};

// Takes and gives back what reducing `input` to `result` over `dimensions` (none: all) needs.
void reduce(Call& call, const at::Tensor& result, const at::Tensor& input,
            c10::OptionalIntArrayRef dimensions, const Accumulation& how);

}  // namespace plimsoll::simulated
