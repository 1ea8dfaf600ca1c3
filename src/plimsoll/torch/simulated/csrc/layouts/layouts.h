// Tensors whose layout is not strided: sparse and nested tensors.
//
// They consist of strided tensors. Most of their kernels only call operations on these strided
// tensors, in the same way on every device. So the host's kernels run unchanged if the strided
// tensors are simulated.
// Operations with a GPU kernel of their own are written out in this folder, or refused.
#pragma once

#include <string>

#include "operation/written_out.h"

namespace plimsoll::simulated {

// Adds all kernels for sparse COO tensors; calls the next two functions.
void add_coordinate_kernels(WrittenOut& kernels);
void add_intersections();
void add_softmax_kernels(WrittenOut& kernels);
void add_compressed_kernels(WrittenOut& kernels);
void add_nested_kernels(WrittenOut& kernels);

// Adds the kernels that convert between nested tensors and padded strided ones.
void add_padding_kernels(WrittenOut& kernels);

void register_layouts();
// Returns whether an operation that makes or takes sparse or nested tensors calls only operations
// on strided tensors. Then its host kernel runs unchanged on simulated tensors.
bool is_composed(const std::string& full);

}  // namespace plimsoll::simulated
