// Tensors whose layout is not strided: sparse and nested tensors.
//
// A sparse or nested tensor consists of strided tensors. Most kernels only call operations on these
// strided tensors, in the same way on every device. So the host's kernels run unchanged if the
// strided tensors are simulated. If an operation has a GPU kernel of its own, plimsoll either
// implements the operation in this folder or refuses it.
#pragma once

#include <string>

#include "operation/written_out.h"

namespace plimsoll::simulated {

// Adds all kernels for sparse COO tensors. Calls the next two functions.
void add_coordinate_kernels(WrittenOut& kernels);
void add_intersections();
void add_softmax_kernels(WrittenOut& kernels);
void add_compressed_kernels(WrittenOut& kernels);
void add_nested_kernels(WrittenOut& kernels);

// Adds the kernels that convert between nested tensors and padded strided ones.
void add_padding_kernels(WrittenOut& kernels);

void register_layouts();
// Returns whether an operation on sparse or nested tensors only calls operations on strided
// tensors. The host's kernel of such an operation runs unchanged on simulated tensors.
bool is_composed(const std::string& full);

}  // namespace plimsoll::simulated
