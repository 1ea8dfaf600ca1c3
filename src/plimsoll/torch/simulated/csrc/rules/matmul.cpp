// Matrix products that run through cuBLAS.
#include <ATen/Context.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "chips/chip.h"
#include "rules/blas.h"
#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

// Returns whether cuBLAS can read the matrix in place: one of its dimensions must have stride 1.
// Other matrices are copied.
bool fits_blas(const at::Tensor& matrix) {
  const auto rows = matrix.size(-2);
  const auto columns = matrix.size(-1);
  const auto down = matrix.stride(-2);
  const auto across = matrix.stride(-1);
  if (matrix.dim() == 2 && matrix.is_non_overlapping_and_dense()) return true;
  return (down == 1 && across >= std::max<std::int64_t>(1, rows)) ||
         (across == 1 && down >= std::max<std::int64_t>(1, columns));
}

void copy_for_blas(Call& call, const at::Tensor& matrix) {
  if (matrix.dim() >= 2 && matrix.numel() != 0 && !fits_blas(matrix)) {
    call.temporary(bytes_of(matrix));
  }
}

// Returns whether cublasLt adds the bias as part of the product. This requires a bias with one
// dimension. `beta` is the index of the argument that scales the bias.
bool adds_bias_in_product(const Call& call, const at::Tensor& bias, const at::Tensor& left,
                          const at::Tensor& right, std::size_t beta = 3) {
  return bias.dim() == 1 && bias.is_contiguous() && left.dim() == 2 && right.dim() == 2 &&
         bias.size(0) == right.size(1) && call.argument(beta).toScalar().equal(1) &&
         call.argument(beta + 1).toScalar().equal(1) && right.size(0) > 1 && right.size(1) > 1;
}

enum class Form : std::uint8_t { plain, batched, added, activated };

// Throws if the matrices' types differ or are not floating-point. PyTorch's Meta kernels do not
// check this; the CUDA kernels do.
void check_types(Form form, const at::Tensor& left, const at::Tensor& right) {
  const bool is_batched = form == Form::batched;
  if (left.scalar_type() != right.scalar_type()) {
    TORCH_CHECK(!is_batched, "expected scalar type ", left.scalar_type(), " but found ",
                right.scalar_type());
    TORCH_CHECK(form == Form::plain, "mat1 and mat2 must have the same dtype, but got ",
                left.scalar_type(), " and ", right.scalar_type());
    TORCH_CHECK(false, "expected mat1 and mat2 to have the same dtype, but got: ", left.dtype(),
                " != ", right.dtype());
  }
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isIntegralType(left.scalar_type(), /*includeBool=*/true),
                              is_batched ? "\"baddbmm_cuda\"" : "\"addmm_cuda\"",
                              " not implemented for '", left.scalar_type(), "'");
}

// Returns the number of bytes to which the rows are aligned, at most 16.
std::int64_t alignment_of(const at::Tensor& matrix) {
  const auto item = static_cast<std::int64_t>(matrix.itemsize());
  const auto row = std::max(matrix.stride(-2), matrix.stride(-1));
  return std::gcd(std::gcd(row * item, matrix.storage_offset() * item), std::int64_t{16});
}

void note_product(Call& call, const at::Tensor& left, const at::Tensor& right) {
  Product product;
  product.batch = left.dim() == 3 ? static_cast<double>(left.size(0)) : 1;
  product.rows = static_cast<double>(left.size(-2));
  product.terms = static_cast<double>(left.size(-1));
  product.columns = static_cast<double>(right.size(-1));
  product.type = left.scalar_type();
  product.allows_tf32 = at::globalContext().allowTF32CuBLAS();
  const auto columns = right.size(-1) * static_cast<std::int64_t>(right.itemsize());
  product.alignment =
      std::min({alignment_of(left), alignment_of(right), std::gcd(columns, std::int64_t{16})});
  call.note_multiplication(product);
}

// Checks the types of operand `first` and the next operand, and notes their product. Allocates the
// results, and takes memory for copies that cuBLAS needs. Returns false if a matrix is empty: the
// kernel then calls no library.
[[nodiscard]] bool begin_product(Call& call, Form form, std::size_t first) {
  const at::Tensor left = call.tensor(first);
  const at::Tensor right = call.tensor(first + 1);
  check_types(form, left, right);
  if (form == Form::added && call.argument_count() == 5) {
    TORCH_CHECK(call.tensor(0).scalar_type() == right.scalar_type(),
                "self and mat2 must have the same dtype, but got ", call.tensor(0).scalar_type(),
                " and ", right.scalar_type());
  }
  call.allocate_all();
  copy_for_blas(call, left);
  copy_for_blas(call, right);
  note_product(call, left, right);
  return left.numel() != 0 && right.numel() != 0;
}

template <Form form, std::size_t first>
void gemm(Call& call) {
  if (begin_product(call, form, first)) take_blas_workspace(call);
}

void addmm(Call& call) {
  if (!begin_product(call, Form::added, 1)) return;
  if (adds_bias_in_product(call, call.tensor(0), call.tensor(1), call.tensor(2))) {
    take_lt_workspace(call);
  } else {
    take_blas_workspace(call);
  }
}

void addmm_activation(Call& call) {
  if (begin_product(call, Form::activated, 1)) take_lt_workspace(call);
}

// Simulates a product with an out_dtype, which is the argument after the operands. Up to PyTorch
// 2.11 the Meta kernel fails if `out` is passed too.
template <Form form, std::size_t first>
void gemm_into_type(Call& call) {
  const at::Tensor left = call.tensor(first);
  const at::Tensor right = call.tensor(first + 1);
  const auto type = call.argument(first + 2).toScalarType();
  TORCH_CHECK(type == left.scalar_type() ||
                  (type == at::kFloat && at::isReducedFloatingType(left.scalar_type())),
              "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs");
  TORCH_CHECK(left.dim() == right.dim() && left.dim() >= 2 && left.size(-1) == right.size(-2),
              "mat1 and mat2 shapes cannot be multiplied (", left.sizes(), " and ", right.sizes(),
              ")");
  std::vector<std::int64_t> sizes = left.sizes().vec();
  sizes.back() = right.size(-1);
  call.set_shape(0, meta_empty(sizes, type));
  if (!begin_product(call, form, first)) return;
  if (form == Form::added && adds_bias_in_product(call, call.tensor(0), left, right, 4)) {
    take_lt_workspace(call);
  } else {
    take_blas_workspace(call);
  }
}

template <std::size_t first>
void vector_product(Call& call) {
  const auto type = call.tensor(first).scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isIntegralType(type, /*includeBool=*/true),
                              first == 0 ? "\"dot\"" : "\"addmv_impl_cuda\"",
                              " not implemented for '", type, "'");
  call.allocate_all();
  take_blas_workspace(call);
}

// Simulates _scaled_mm(left, right, ...). cublasLt multiplies the 8-bit numbers.
void scaled_mm(Call& call) {
  const at::Tensor left = call.tensor(0);
  const at::Tensor right = call.tensor(1);
  call.allocate_all();
  take_lt_workspace(call);
  const auto size = [](std::int64_t of) { return static_cast<double>(of); };
  // The product takes half the time of a product of the same size in half precision. So the rule
  // notes a product in half precision with a batch of 0.5.
  call.note_multiplication(
      Product{0.5, size(left.size(0)), size(right.size(1)), size(left.size(1)), at::kHalf});
}

// Notes a product for each group. The groups are assumed to be equal in size, because their real
// sizes depend on data.
void note_groups(Call& call, const at::Tensor& left, const at::Tensor& right, double groups) {
  Product product;
  product.type = left.scalar_type();
  product.allows_tf32 = at::globalContext().allowTF32CuBLAS();
  product.rows =
      static_cast<double>(left.size(-2)) / (left.dim() == 2 && right.dim() == 3 ? groups : 1);
  product.terms =
      static_cast<double>(left.size(-1)) / (left.dim() == 2 && right.dim() == 2 ? groups : 1);
  product.columns =
      static_cast<double>(right.size(-1)) / (left.dim() == 3 && right.dim() == 2 ? groups : 1);
  if (left.scalar_type() == at::kBFloat16) {  // one kernel multiplies all groups
    product.batch = groups;
    call.note_multiplication(product);
    return;
  }
  for (double group = 0; group < groups; ++group) call.note_multiplication(product);
}

// Simulates _grouped_mm(left, right, offsets, bias, out_dtype). Each row of the result is padded to
// a multiple of 16 bytes. The shape is computed here, because PyTorch's Meta kernel refuses
// operands that the CUDA fallback (one product per group) accepts.
void grouped_mm(Call& call) {
  const at::Tensor left = call.tensor(0);
  const at::Tensor right = call.tensor(1);
  const at::Tensor offsets = call.tensor(2);
  const auto type =
      call.argument(4).isNone() ? left.scalar_type() : call.argument(4).toScalarType();
  std::vector<std::int64_t> sizes;
  std::int64_t groups = left.size(0);
  if (left.dim() == 2) {
    groups = offsets.size(0);
    sizes = {left.size(0), right.size(-1)};
    if (right.dim() == 2) sizes.insert(sizes.begin(), groups);
  } else if (right.dim() == 2) {
    groups = offsets.size(0);
    sizes = {left.size(1), right.size(1)};
  } else {
    sizes = {left.size(0), left.size(1), right.size(-1)};
  }
  const auto step = static_cast<std::int64_t>(16 / c10::elementSize(type));
  const std::int64_t row = (sizes.back() + step - 1) / step * step;
  std::vector<std::int64_t> strides{row, 1};
  if (sizes.size() == 3) strides.insert(strides.begin(), sizes[1] * row);
  call.set_shape(0,
                 at::empty_strided(sizes, strides, left.options().dtype(type).device(at::kMeta)));
  call.allocate_all();
  note_groups(call, left, right, static_cast<double>(std::max<std::int64_t>(1, groups)));
  if (left.scalar_type() == at::kBFloat16 && chip_of(call.properties()).grouped_products != 0) {
    call.temporary(60 * static_cast<std::size_t>(groups));
    constexpr std::size_t kCutlassWorkspace = 67584;  // from recordings of a GPU
    call.temporary(kCutlassWorkspace);
    return;
  }
  if (offsets.defined()) call.synchronize();
  for (std::int64_t group = 0; group < groups; ++group) take_blas_workspace(call);
}

const RuleTable kMatmulRules{
    {"_grouped_mm", grouped_mm},
    {"_scaled_mm", scaled_mm},
    {"mm", gemm<Form::plain, 0>, kNoOwnOverlap},
    {"bmm", gemm<Form::batched, 0>, kNoOwnOverlap},
    {"baddbmm", gemm<Form::batched, 1>, kNoOwnOverlap},
    {"baddbmm_", gemm<Form::batched, 1>},
    {"addmm", addmm, kNoOwnOverlap},
    {"addmm_", addmm},
    {"aten::mm.dtype", gemm_into_type<Form::plain, 0>},
    {"aten::mm.dtype_out", gemm_into_type<Form::plain, 0>},
    {"aten::bmm.dtype", gemm_into_type<Form::batched, 0>},
    {"aten::bmm.dtype_out", gemm_into_type<Form::batched, 0>},
    {"aten::addmm.dtype", gemm_into_type<Form::added, 1>},
    {"aten::addmm.dtype_out", gemm_into_type<Form::added, 1>},
    {"aten::baddbmm.dtype", gemm_into_type<Form::batched, 1>},
    {"aten::baddbmm.dtype_out", gemm_into_type<Form::batched, 1>},
    {"_addmm_activation", addmm_activation},
    {"addmv", vector_product<1>},
    {"addmv_", vector_product<1>},
    {"dot", vector_product<0>},
    {"vdot", vector_product<0>},
};

}  // namespace
}  // namespace plimsoll::simulated
