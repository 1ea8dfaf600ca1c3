// What kernels allocate inside, besides their results: one table a file of this folder.
//
// A rule says what the kernel takes, in its order: `call.allocate(i)` for result i,
// `call.temporary(bytes)` for what the kernel frees itself (at the end of the operation, or at
// `call.release`). Sizes and order were read in PyTorch's source, checked against recordings of
// PyTorch 2.11 on compute capability 9.0; a rule that knows other versions or chips says so.
#pragma once

#include <ATen/ops/empty.h>

#include <span>
#include <vector>

#include "operation/call.h"
#include "operation/rule_table.h"

namespace plimsoll::simulated {

// The kernel takes nothing besides its results.
inline void nothing(Call&) {}
constexpr Rule kUnknown = nullptr;

// Adds the tables of all files. Called once, before an operation runs.
void register_rules();

// Each file's table. A new rule is a new row of one of them.
std::span<const RuleRow> activation_rules();
std::span<const RuleRow> attention_rules();
std::span<const RuleRow> convolution_rules();
std::span<const RuleRow> counting_rules();
std::span<const RuleRow> distance_rules();
std::span<const RuleRow> embedding_rules();
std::span<const RuleRow> filling_rules();
std::span<const RuleRow> fourier_rules();
std::span<const RuleRow> image_rules();
std::span<const RuleRow> indexing_rules();
std::span<const RuleRow> linear_algebra_rules();
std::span<const RuleRow> list_rules();
std::span<const RuleRow> loss_rules();
std::span<const RuleRow> matmul_rules();
std::span<const RuleRow> normalization_rules();
std::span<const RuleRow> random_rules();
std::span<const RuleRow> recurrent_rules();
std::span<const RuleRow> reduction_rules();
std::span<const RuleRow> scan_rules();
std::span<const RuleRow> shape_rules();
std::span<const RuleRow> sorting_rules();
std::span<const RuleRow> trait_rules();
std::span<const RuleRow> transformer_rules();

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

constexpr std::size_t kFloat = 4;  // bytes of what kernels accumulate in

// The shape of a result.
inline at::Tensor meta_empty(at::IntArrayRef sizes, at::ScalarType type) {
  return at::empty(sizes, at::TensorOptions().dtype(type).device(c10::DeviceType::Meta));
}

// That of a result that is as `tensor`, but contiguous.
inline at::Tensor meta_contiguous(const at::Tensor& tensor) {
  return meta_empty(tensor.sizes(), tensor.scalar_type());
}

// A dimension that is an argument, counted from the first.
inline std::int64_t dimension_of(const Call& call, std::size_t argument, const at::Tensor& tensor) {
  const std::int64_t dimension = call.argument(argument).toInt();
  return dimension < 0 ? dimension + tensor.dim() : dimension;
}

// Memory that the kernel takes and frees at once.
inline void scratch(Call& call, std::size_t bytes) {
  call.temporary(bytes);
  call.release_last();
}

// The last one first.
inline void release_backwards(Call& call, const std::vector<std::size_t>& temporaries) {
  for (auto last = temporaries.rbegin(); last != temporaries.rend(); ++last) call.release(*last);
}

// Many kernels read contiguous memory only.
inline void copy_unless_contiguous(Call& call, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_contiguous()) return;
  call.temporary(bytes_of(tensor));
  call.note_copy(tensor);
}

}  // namespace plimsoll::simulated
