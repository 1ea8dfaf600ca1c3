// Memory for a reduction's partial results, for the rules of kernels that reduce.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/OptionalArrayRef.h>

#include <cstddef>

#include "operation/call.h"

namespace plimsoll::simulated {

struct Accumulation {
  std::size_t bytes = 4;  // the size of one partial result
  int input_vector = 4;   // inputs that a thread loads at once
};

// Takes and frees the memory for reducing `input` to `result` over `dimensions`; none means all.
void reduce(Call& call, const at::Tensor& result, const at::Tensor& input,
            c10::OptionalIntArrayRef dimensions, const Accumulation& how);

}  // namespace plimsoll::simulated
