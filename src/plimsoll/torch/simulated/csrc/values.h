// The values of small tensors, which decide lengths, shapes and control flow. Large ones have none.
#pragma once

#include <ATen/core/Tensor.h>

namespace plimsoll::simulated {

struct Allocation;

// Whether a tensor with this memory is small enough.
bool may_have_values(const Allocation& allocation, at::ScalarType type);
// Whether something computed or read them.
bool has_values(const at::Tensor& tensor);
// As a CPU tensor over the same memory; undefined for a large one.
at::Tensor values_of(const at::Tensor& tensor);
// Writes what stands for values that nobody knows: ones, which programs may divide by and take
// logarithms of; and zeros where they are integers, which may be indices.
void fill_unknown(const at::Tensor& tensor);

}  // namespace plimsoll::simulated
