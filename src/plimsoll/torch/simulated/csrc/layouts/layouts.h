// Tensors in layouts other than strided: sparse and nested ones.
//
// They consist of strided tensors, and most of their kernels are composed of operations on these,
// equally on every device. Such a host kernel runs unchanged on simulated parts. An operation with
// a special GPU kernel is written out in this folder, or refused.
#pragma once

#include <string>

#include "operation/written_out.h"

namespace plimsoll::simulated {

// Adds all kernels of the COO layout; it calls the next two.
void add_coordinate_kernels(WrittenOut& kernels);
void add_intersections();
void add_softmax_kernels(WrittenOut& kernels);
void add_compressed_kernels(WrittenOut& kernels);
void add_nested_kernels(WrittenOut& kernels);

// Adds kernels that make nested tensors from strided ones, or strided ones from nested ones.
void add_padding_kernels(WrittenOut& kernels);

void register_layouts();
// Returns whether an operation on strided tensors has a kernel that is the same on every device.
bool is_composed(const std::string& full);

}  // namespace plimsoll::simulated
