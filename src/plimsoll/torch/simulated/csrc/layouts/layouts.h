// Tensors of other layouts than strided: sparse ones and nested ones.
//
// They are made of strided tensors, and most of their kernels are composed of operations on these,
// the same on every device. So a kernel for the host runs as it is, on simulated parts; what has
// another kernel on a GPU is written out in this folder, or refused.
#pragma once

#include <string>

#include "operation/written_out.h"

namespace plimsoll::simulated {

// Adds all kernels of COO layout; it calls the next two.
void add_coordinate_kernels(WrittenOut& kernels);
void add_intersections();
void add_softmax_kernels(WrittenOut& kernels);
void add_compressed_kernels(WrittenOut& kernels);
void add_nested_kernels(WrittenOut& kernels);

// Those of strided tensors that make nested ones, or are made of them.
void add_padding_kernels(WrittenOut& kernels);

void register_layouts();
// Whether an operation on strided tensors has a kernel that is the same on every device.
bool is_composed(const std::string& full);

}  // namespace plimsoll::simulated
