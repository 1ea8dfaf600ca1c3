// Takes the memory in which a reduction keeps its partial results. The rules of all kernels that
// contain a reduction call these functions.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/OptionalArrayRef.h>

#include <cstddef>

#include "operation/call.h"

namespace plimsoll::simulated {

struct Accumulation {
  std::size_t bytes = 4;  // of one partial result
  int input_vector = 4;   // how many inputs a thread loads in one instruction
};

// Takes and frees the memory for reducing `input` to `result` over `dimensions`; nullopt means all
// dimensions. `input` and `result` may be Meta tensors.
void reduce(Call& call, const at::Tensor& result, const at::Tensor& input,
            c10::OptionalIntArrayRef dimensions, const Accumulation& how);

// Takes and frees the memory for the sum or mean of floating-point numbers over `dimensions`.
void reduce_to_sum(Call& call, const at::Tensor& result, const at::Tensor& input,
                   c10::OptionalIntArrayRef dimensions);

// Allocates a result of the call and sums `input` over `dimensions` into it. Kernels that end with
// Tensor.sum work like this.
void allocate_sum(Call& call, std::size_t result, const at::Tensor& input,
                  at::IntArrayRef dimensions);

}  // namespace plimsoll::simulated
