// Tensors of other layouts than strided: sparse ones and nested ones.
//
// They are made of strided tensors, and most of their kernels are composed of operations on these,
// the same on every device. So a kernel for the host runs as it is, on simulated parts; what has
// another kernel on a GPU is written out in this folder, or refused.
#pragma once

#include <torch/library.h>

#include <set>
#include <string>
#include <utility>

#include "operation/written_out.h"

namespace plimsoll::simulated {

// The kernels of a layout that are written out.
class LayoutKernels {
 public:
  explicit LayoutKernels(c10::DispatchKey key)
      : aten_(torch::Library::IMPL, "aten", key, __FILE__, __LINE__) {}
  template <typename Kernel>
  void add(const std::string& name, Kernel&& kernel) {
    names_.insert("aten::" + name);
    aten_.impl(name.c_str(), std::forward<Kernel>(kernel));
  }
  [[nodiscard]] bool has(const std::string& full) const { return names_.count(full) != 0; }

 private:
  std::set<std::string> names_;
  torch::Library aten_;
};

// Adds all kernels of COO layout; it calls the next two.
void add_coordinate_kernels(LayoutKernels& kernels);
void add_intersections();
void add_softmax_kernels(LayoutKernels& kernels);
void add_compressed_kernels(LayoutKernels& kernels);
void add_nested_kernels(LayoutKernels& kernels);

// Those of strided tensors that make nested ones, or are made of them.
void add_padding_kernels(WrittenOut& kernels);

void register_layouts();
// Whether an operation on strided tensors has a kernel that is the same on every device.
bool is_composed(const std::string& full);

}  // namespace plimsoll::simulated
