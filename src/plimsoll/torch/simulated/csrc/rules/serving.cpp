// Operations of serving engines: matrix products with quantized weights, mixtures of experts.
//
// The rules give the memory that vLLM's kernels allocate besides their results. The rules for
// AWQ and fp8 are confirmed on an H100 (benchmarks/results/serving.jsonl). The remaining rules
// are unconfirmed.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <string_view>

#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

double number(std::int64_t value) { return static_cast<double>(value); }

bool is_given(const at::Tensor& tensor) { return tensor.defined() && tensor.numel() > 0; }

std::size_t multiprocessors(const Call& call) {
  return static_cast<std::size_t>(call.properties().multiprocessors);
}

// Takes the memory of a matrix product by Marlin, a kernel for quantized weights. Three adjacent
// arguments of the call give the product's size: argument number `sizes` gives the rows, the next
// one the columns, and the last one the terms of each sum. Each row is multiplied with the weights
// of `copies` experts. `sums` is the number of 32-bit partial sums that the kernel keeps.
void multiply_by_marlin(Call& call, std::size_t sizes, std::int64_t copies, std::size_t sums) {
  const at::Tensor left = call.tensor(0);
  const at::Tensor given = call.tensor(1);
  const std::int64_t rows = call.argument(sizes).toInt() * copies;
  const std::int64_t columns = call.argument(sizes + 1).toInt();
  const std::int64_t terms = call.argument(sizes + 2).toInt();
  const at::ScalarType type =
      left.itemsize() == 1 ? call.tensor(4).scalar_type() : left.scalar_type();
  call.set_shape(0, meta_empty({rows, columns}, type));
  if (given.defined()) call.set_result(0, given);
  call.allocate_all();
  if (sums > 0) call.temporary(sums * kFloat);
  const bool is_reordered = is_given(call.tensor(8)) && is_given(call.tensor(9));
  if (is_reordered) call.temporary(static_cast<std::size_t>(rows * terms) * left.itemsize());
  Product product{1, number(rows), number(columns), number(terms), type};
  product.right_bytes = static_cast<double>(bytes_of(call.tensor(2)));
  call.note_multiplication(product);
}

constexpr std::size_t kMostColumns = 256;  // in one tile of Marlin

// Simulates marlin_gemm(left, out?, weights, ..., rows, columns, terms, ..., atomic, floats, ...).
void marlin(Call& call) {
  const auto rows = static_cast<std::size_t>(call.argument(12).toInt());
  const std::size_t block = std::min<std::size_t>(round_up(rows, 16), 64);
  const bool sums_floats = call.argument(17).toBool();
  multiply_by_marlin(call, 12, 1, sums_floats ? multiprocessors(call) * block * kMostColumns : 0);
}

// Simulates moe_wna16_marlin_gemm(left, out?, weights, ..., sorted tokens, ...).
void marlin_of_experts(Call& call) {
  const auto block = static_cast<std::size_t>(call.argument(15).toInt());
  const auto columns = static_cast<std::size_t>(call.argument(20).toInt());
  constexpr std::size_t kBlocksOfEach = 4;
  std::size_t sums = std::min(columns * elements(call.tensor(11)),
                              multiprocessors(call) * kBlocksOfEach * block * kMostColumns);
  if (block == 8) sums *= 2;
  const bool sums_floats = call.argument(24).toBool() && !call.argument(23).toBool();
  multiply_by_marlin(call, 19, call.argument(16).toInt(), sums_floats ? sums : 0);
}

// Simulates machete_mm(left, weights, ...). If the last wave of tiles does not fill the
// multiprocessors, several multiprocessors share the sum of one tile and keep partial results.
// plimsoll does not know the size of the kernel's tiles, so the memory is uncertain.
void machete(Call& call) {
  call.allocate_all();
  const at::Tensor out = call.shape_of_result(0);
  const at::Tensor left = call.tensor(0);
  const auto rows = static_cast<std::size_t>(left.size(0));
  const auto columns = static_cast<std::size_t>(out.size(-1));
  constexpr std::size_t kColumns = 128, kFewestRows = 16, kMostRows = 256;  // of a tile
  const std::size_t block = std::clamp(std::bit_ceil(rows), kFewestRows, kMostRows);
  const std::size_t blocks = (rows + block - 1) / block * ((columns + kColumns - 1) / kColumns);
  const std::size_t turn = multiprocessors(call);
  const std::size_t left_over = blocks % turn;
  const std::size_t shared = left_over == 0 ? 0 : left_over + (blocks > turn ? turn : 0);
  const std::size_t sums = kColumns * block * kFloat;
  UncertainMemory memory;
  memory.kind = std::hash<std::string_view>()("machete") ^ (blocks * sums);
  memory.bytes = shared * sums;
  memory.most = 2 * turn * sums;
  call.take_uncertain(memory);
  Product product{1, number(left.size(0)), number(out.size(-1)), number(left.size(1)),
                  left.scalar_type()};
  product.right_bytes = static_cast<double>(bytes_of(call.tensor(1)));
  call.note_multiplication(product);
}

// Simulates cutlass_scaled_mm(out, left, right, ...). The operands have 8 bits per number, so the
// product is twice as fast as in half precision.
void scaled_product(Call& call) {
  const at::Tensor left = call.tensor(1);
  const at::Tensor right = call.tensor(2);
  call.note_multiplication(
      Product{0.5, number(left.size(0)), number(right.size(1)), number(left.size(1)), at::kHalf});
}

// Simulates cutlass_moe_mm(out, left, right, ...). `right` has one matrix for each expert. The rows
// of `left` are assumed to be divided equally among the experts.
void scaled_products_of_experts(Call& call) {
  const at::Tensor out = call.tensor(0);
  const at::Tensor left = call.tensor(1);
  const double experts = std::max(1.0, number(call.tensor(2).size(0)));
  constexpr std::size_t kDescriptors = 4 * 128;  // descriptors of the operands, per multiprocessor
  call.temporary(multiprocessors(call) * kDescriptors);
  call.note_multiplication(Product{experts / 2, number(left.size(0)) / experts,
                                   number(out.size(-1)), number(left.size(-1)), at::kHalf});
}

// Simulates topk_softmax(weights, experts, rows, scores, ...). For some numbers of experts vLLM
// has no fused kernel, and allocates a temporary workspace for the softmax of all scores.
void choose_experts(Call& call) {
  const at::Tensor scores = call.tensor(3);
  const auto experts = static_cast<std::size_t>(scores.size(-1));
  const bool has_kernel = experts <= 576 && (std::has_single_bit(experts) || experts % 64 == 0);
  if (!has_kernel) call.temporary(elements(scores) * kFloat);
}

// Simulates moe_align_block_size(chosen, experts, ...), which computes where each expert's rows
// begin.
void align_rows(Call& call) {
  const auto experts = static_cast<std::size_t>(call.argument(1).toInt());
  const bool is_small = elements(call.tensor(0)) < 1024 && experts <= 64;
  if (!is_small) call.temporary((experts + 1) * sizeof(std::int32_t));
}

// Simulates grouped_topk(scores, groups, chosen groups, chosen experts, ...).
void choose_of_groups(Call& call) {
  const std::int64_t rows = call.tensor(0).size(0);
  const std::int64_t chosen = call.argument(3).toInt();
  call.set_shape(0, meta_empty({rows, chosen}, at::kFloat));
  call.set_shape(1, meta_empty({rows, chosen}, at::kInt));
  call.allocate_all();
}

const RuleTable kServingRules{
    {"_C::marlin_gemm", marlin},
    {"_moe_C::moe_wna16_marlin_gemm", marlin_of_experts},
    {"_C::machete_mm", machete},
    {"_C::cutlass_scaled_mm", scaled_product},
    {"_C::cutlass_scaled_mm_azp", scaled_product},
    {"_C::cutlass_moe_mm", scaled_products_of_experts},
    {"_moe_C::topk_softmax", choose_experts},
    {"_moe_C::topk_sigmoid", choose_experts},
    {"_moe_C::moe_align_block_size", align_rows},
    {"_moe_C::grouped_topk", choose_of_groups},
};

}  // namespace
}  // namespace plimsoll::simulated
