// The memory that kernels take besides their results. Each file of this folder has one table of
// rules; a new rule is a new row in one of them.
//
// A rule lists the kernel's memory in the order in which the kernel takes it: `call.allocate(i)`
// for result i, `call.temporary(bytes)` for memory that the kernel frees itself, at `call.release`
// or at the end of the operation. Sizes and order come from PyTorch's source and were checked
// against recordings of PyTorch 2.11 on compute capability 9.0. A rule for other versions or chips
// says so.
#pragma once

#include <ATen/ops/empty.h>

#include <vector>

#include "operation/call.h"
#include "operation/rule_table.h"

namespace plimsoll::simulated {

// The rule of kernels that take no memory besides their results.
inline void nothing(Call&) {}
constexpr Rule kUnknown = nullptr;

inline std::size_t round_up(std::size_t value, std::size_t step) {
  return (value + step - 1) / step * step;
}

inline std::size_t elements(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel());
}

inline std::size_t bytes_of(const at::Tensor& tensor) {
  return elements(tensor) * tensor.itemsize();
}

inline std::size_t bits_of(const at::Tensor& tensor) { return tensor.itemsize() * 8; }

constexpr std::size_t kFloat = 4;  // bytes of a partial sum: kernels accumulate in float

// Returns the shape of a result: a contiguous tensor without memory.
inline at::Tensor meta_empty(at::IntArrayRef sizes, at::ScalarType type) {
  return at::empty(sizes, at::TensorOptions().dtype(type).device(c10::DeviceType::Meta));
}

// Returns the shape of a contiguous result that has `tensor`'s sizes and type.
inline at::Tensor meta_contiguous(const at::Tensor& tensor) {
  return meta_empty(tensor.sizes(), tensor.scalar_type());
}

// Returns argument number `argument` of the call, which is a dimension of `tensor`. Converts a
// negative dimension, which counts from the last one.
inline std::int64_t dimension_of(const Call& call, std::size_t argument, const at::Tensor& tensor) {
  const std::int64_t dimension = call.argument(argument).toInt();
  return dimension < 0 ? dimension + tensor.dim() : dimension;
}

// Takes memory that the kernel frees right afterwards.
inline void scratch(Call& call, std::size_t bytes) {
  call.temporary(bytes);
  call.release_last();
}

// Releases temporaries in reverse order.
inline void release_backwards(Call& call, const std::vector<std::size_t>& temporaries) {
  for (auto last = temporaries.rbegin(); last != temporaries.rend(); ++last) call.release(*last);
}

// Takes memory for a contiguous copy if the tensor is not contiguous. Many kernels need the copy.
inline void copy_unless_contiguous(Call& call, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_contiguous()) return;
  call.temporary(bytes_of(tensor));
  call.note_copy(tensor);
}

}  // namespace plimsoll::simulated
