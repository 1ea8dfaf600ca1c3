// What kernels allocate inside, besides their results: one table a file of this folder.
//
// A rule takes memory in the order in which the kernel does: `call.allocate(i)` for result i,
// `call.temporary(bytes)` for what the kernel frees itself (at the end of the operation, or at
// `call.release`). Sizes and order were read in PyTorch's source, checked against recordings of
// PyTorch 2.11 on compute capability 9.0; a rule that knows other versions or chips says so.
#pragma once

#include <ATen/ops/empty.h>

#include <span>
#include <string>

#include "../call.h"

namespace plimsoll::simulated {

// A new rule is a new row of one of the tables. An operation has the rule of the row with its full
// name, else of that with its plain one, and the traits of all rows that name it.
struct RuleRow {
  const char* name;   // "topk", with its overload "aten::max.dim", or a family "_foreach_*"
  Rule rule;          // `nothing`, or `kUnknown`, as families have
  Traits traits = 0;  // of operation.h, joined by |
};

// The kernel takes nothing besides its results.
inline void nothing(Call&) {}
constexpr Rule kUnknown = nullptr;

struct Found {
  Rule rule = kUnknown;
  Traits traits = 0;
};
// `full`: "aten::max.dim"; `plain`: "max".
Found find_rule(const std::string& full, const std::string& plain);

std::span<const RuleRow> matmul_rules();
std::span<const RuleRow> attention_rules();
std::span<const RuleRow> normalization_rules();
std::span<const RuleRow> convolution_rules();
std::span<const RuleRow> reduction_rules();
std::span<const RuleRow> sorting_rules();    // sort, topk, scans, unique, random permutations
std::span<const RuleRow> indexing_rules();   // index, scatter, embedding
std::span<const RuleRow> recurrent_rules();  // LSTM, GRU, RNN
std::span<const RuleRow> shape_rules();      // operations without a shape function of PyTorch's
std::span<const RuleRow> storage_rules();    // what is written out in kernels.cpp
std::span<const RuleRow> module_rules();     // fused transformer layers, losses, what is left

inline std::size_t round_up(std::size_t value, std::size_t step) {
  return (value + step - 1) / step * step;
}

inline std::size_t elements(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel());
}

inline std::size_t bytes_of(const at::Tensor& tensor) {
  return elements(tensor) * tensor.itemsize();
}

constexpr std::size_t kFloat = 4;  // bytes of what kernels accumulate in

// The shape of a result.
inline at::Tensor meta_empty(at::IntArrayRef sizes, at::ScalarType type) {
  return at::empty(sizes, at::TensorOptions().dtype(type).device(c10::DeviceType::Meta));
}

// Memory that the kernel takes and frees at once.
inline void scratch(Call& call, std::size_t bytes) {
  call.temporary(bytes);
  call.release_last();
}

}  // namespace plimsoll::simulated
