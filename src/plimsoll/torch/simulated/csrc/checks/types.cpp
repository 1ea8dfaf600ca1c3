// Which element types PyTorch's CUDA kernels take. Meta kernels and CPU kernels take further types:
// softmax of integers has a shape, and max_pool2d of integers runs on a CPU.
//
// The sets are those of PyTorch's own tests (`dtypesIfCUDA` of OpInfo, in
// torch/testing/_internal/common_methods_invocations.py). Only kernels that refuse a type are here.
#include "checks/types.h"

#include <ATen/native/TypeProperties.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "operation/named_rows.h"

namespace plimsoll::simulated {
namespace {

using at::ScalarType;
using at::Tensor;

// The element types that a kernel takes.
enum class Types : std::uint8_t {
  floating,            // half, bfloat16, float, double
  floating_and_bytes,  // the same and uint8
  full_floating,       // float, double
  solvable,            // float, double, complex float, complex double
  integers,            // without bool
  integers_and_bool,
};

bool takes(Types types, ScalarType type) {
  const bool is_full = type == at::kFloat || type == at::kDouble;
  switch (types) {
    case Types::floating: return is_full || type == at::kHalf || type == at::kBFloat16;
    case Types::floating_and_bytes:
      return is_full || type == at::kHalf || type == at::kBFloat16 || type == at::kByte;
    case Types::full_floating: return is_full;
    case Types::solvable: return is_full || type == at::kComplexFloat || type == at::kComplexDouble;
    case Types::integers: return c10::isIntegralType(type, /*includeBool=*/false);
    case Types::integers_and_bool: return c10::isIntegralType(type, /*includeBool=*/true);
  }
  return true;
}

// The calls that an operation serves without a kernel. Such a call may have any element type.
// Pointwise operations have no such calls: they look for a kernel even if a tensor is empty.
enum Early : std::uint8_t {
  kNever = 0,
  kEmpty = 1 << 0,     // an operand has no elements
  kSameSize = 1 << 1,  // the result has the operand's size, so that a copy is enough
};

// Names the types that a kernel takes. `name` is the operation's name without a trailing
// underscore, and `kernel` the name in PyTorch's error. `early` joins values of Early by |.
struct KernelTypes {
  const char* name;
  const char* kernel;
  Types types;
  std::uint8_t early = kNever;
};

const NamedRows<KernelTypes> kKernelTypes{
    {"_softmax", "host_softmax", Types::floating, kEmpty},
    {"_log_softmax", "host_softmax", Types::floating, kEmpty},
    {"bitwise_and", "bitwise_and_cuda", Types::integers_and_bool},
    {"bitwise_or", "bitwise_or_cuda", Types::integers_and_bool},
    {"bitwise_xor", "bitwise_xor_cuda", Types::integers_and_bool},
    {"bitwise_not", "bitwise_not_cuda", Types::integers_and_bool},
    {"gcd", "gcd_cuda", Types::integers},
    {"lcm", "lcm_cuda", Types::integers},
    {"bincount", "bincount_cuda", Types::integers},
    {"frac", "frac_cuda", Types::floating},
    {"leaky_relu", "leaky_relu_cuda", Types::floating},
    {"hardswish", "hardswish_cuda", Types::floating},
    {"_cdist_forward", "cdist_cuda", Types::full_floating, kEmpty},
    {"_ctc_loss", "ctc_loss_cuda", Types::full_floating},
    {"upsample_nearest1d", "upsample_nearest1d_out_frame", Types::floating_and_bytes, kEmpty},
    {"upsample_nearest2d", "upsample_nearest2d_out_frame", Types::floating_and_bytes,
     kEmpty | kSameSize},
    {"upsample_nearest3d", "upsample_nearest3d_out_frame", Types::floating_and_bytes, kEmpty},
    {"_upsample_nearest_exact1d", "upsample_nearest1d_out_frame", Types::floating_and_bytes,
     kEmpty},
    {"_upsample_nearest_exact2d", "upsample_nearest2d_out_frame", Types::floating_and_bytes,
     kEmpty | kSameSize},
    {"_upsample_nearest_exact3d", "upsample_nearest3d_out_frame", Types::floating_and_bytes,
     kEmpty},
    {"upsample_linear1d", "upsample_linear1d_out_frame", Types::floating},
    {"upsample_bilinear2d", "upsample_bilinear2d_out_frame", Types::floating, kSameSize},
    {"upsample_bicubic2d", "upsample_bicubic2d_out_frame", Types::floating},
    {"upsample_trilinear3d", "upsample_trilinear3d_out_frame", Types::floating},
    {"avg_pool2d", "avg_pool2d_out_cuda_frame", Types::floating, kEmpty},
    {"avg_pool3d", "avg_pool3d_out_cuda_frame", Types::floating},
    {"_adaptive_avg_pool2d", "adaptive_avg_pool2d_cuda", Types::floating, kEmpty},
    {"_adaptive_avg_pool3d", "adaptive_avg_pool3d_cuda", Types::floating, kEmpty},
    {"adaptive_max_pool2d", "adaptive_max_pool2d_cuda", Types::floating, kEmpty},
    {"adaptive_max_pool3d", "adaptive_max_pool3d_cuda", Types::floating, kEmpty},
    {"max_pool2d_with_indices", "max_pool2d_with_indices_out_cuda_frame", Types::floating, kEmpty},
    {"max_pool3d_with_indices", "max_pool3d_with_indices_out_frame", Types::floating, kEmpty},
    {"multi_margin_loss", "multi_margin_loss_cuda", Types::floating, kEmpty},
    {"multilabel_margin_loss_forward", "multilabel_margin_loss_forward_out_cuda", Types::floating,
     kEmpty},
    {"linalg_cholesky_ex", "cholesky_cuda", Types::solvable, kEmpty},
    {"cholesky", "cholesky_cuda", Types::solvable, kEmpty},
    {"_linalg_eigh", "linalg_eigh_cuda", Types::solvable, kEmpty},
    {"_linalg_svd", "svd_cuda", Types::solvable, kEmpty},
    {"linalg_qr", "qr_cuda", Types::solvable},
    {"geqrf", "geqrf_cuda", Types::solvable},
    {"linalg_lu_factor_ex", "lu_factor_cuda", Types::solvable, kEmpty},
};

// Returns the tensors that the kernel reads, so none that is given as `out`.
std::vector<Tensor> operands(const Call& call) {
  std::vector<Tensor> found;
  const auto& schema_arguments = call.op().schema().arguments();
  for (std::size_t i = 0; i < call.argument_count(); ++i) {
    if (schema_arguments[i].is_out()) continue;
    for_tensors(call.argument(i), [&](const Tensor& tensor) {
      if (tensor.defined()) found.push_back(tensor);
    });
  }
  return found;
}

// Returns the type to which the kernel converts all operands.
ScalarType common_type(const Call& call) {
  at::native::ResultTypeState state;
  for (const Tensor& tensor : operands(call)) {
    state = at::native::update_result_type_state(tensor, state);
  }
  return at::native::result_type(state);
}

bool returns_early(const KernelTypes& row, Call& call) {
  const std::vector<Tensor> found = operands(call);
  if ((row.early & kEmpty) != 0 &&
      std::any_of(found.begin(), found.end(), [](const Tensor& one) { return one.numel() == 0; })) {
    call.infer();  // raises PyTorch's errors about shapes
    return true;
  }
  return (row.early & kSameSize) != 0 && call.shape_of_result(0).sizes() == call.tensor(0).sizes();
}

void require_type(ScalarType expected, const Tensor& tensor) {
  TORCH_CHECK(!tensor.defined() || tensor.scalar_type() == expected, "expected scalar type ",
              expected, " but found ", tensor.scalar_type());
}

// The kernels read `weight` and `bias` as the input's type. The CPU's kernels also take other
// types.
void normalized(const Call& call, std::size_t weight) {
  for (const std::size_t i : {weight, weight + 1}) {
    require_type(call.tensor(0).scalar_type(), call.tensor(i));
  }
}
void normalized_layer(const Call& call) {  // (input, shape, weight, bias, eps)
  const at::IntArrayRef sizes = call.tensor(0).sizes();
  const std::size_t inner = call.argument(1).toIntVector().size();
  if (inner > sizes.size()) return;  // the Meta kernel raises the error
  if (c10::multiply_integers(sizes.slice(0, sizes.size() - inner)) != 0) normalized(call, 2);
}
void normalized_group(const Call& call) {  // (input, weight, bias, N, C, HxW, group, eps)
  const bool is_small = at::isReducedFloatingType(call.tensor(0).scalar_type());
  if (is_small && call.argument(3).toInt() == 0) return;
  normalized(call, 1);
}

void weighted_classes(const Call& call) {  // (self, target, weight, ...)
  if (call.tensor(1).numel() == 0) return;
  require_type(call.tensor(0).scalar_type(), call.tensor(2));
}

void sampled_by_grid(const Call& call) {  // (input, grid, ...)
  if (call.tensor(1).numel() == 0) return;
  require_type(call.tensor(0).scalar_type(), call.tensor(1));
}

void same_as_target(const Call& call) {  // (self, target, weight, reduction)
  const ScalarType expected = call.tensor(0).scalar_type();
  const ScalarType found = call.tensor(1).scalar_type();
  TORCH_CHECK(found == expected, "Found dtype ", found, " but expected ", expected);
}

void selected(const Call& call) {  // index_select(self, dim, index)
  const Tensor index = call.tensor(2);
  TORCH_CHECK(index.dim() <= 1, "Index is supposed to be an empty tensor or a vector");
  std::vector<std::int64_t> sizes = call.tensor(0).sizes().vec();
  const std::int64_t dim = call.argument(1).toInt();
  const std::int64_t place = dim < 0 ? dim + call.tensor(0).dim() : dim;
  if (place >= 0 && place < call.tensor(0).dim()) sizes[place] = index.numel();
  if (c10::multiply_integers(sizes) == 0) return;
  TORCH_CHECK(index.scalar_type() == at::kInt || index.scalar_type() == at::kLong,
              "index_select(): Expected dtype int32 or int64 for index");
}

void filled(const Call& call) {  // index_fill(self, dim, index, value)
  TORCH_CHECK_INDEX(call.tensor(2).scalar_type() == at::kLong,
                    "index_fill_(): Expected dtype int64 for index.");
}

void counted_types(const Call& call) {  // bincount(self, weights, minlength)
  const Tensor self = call.tensor(0);
  TORCH_CHECK(self.dim() == 1, "bincount only supports 1-d non-negative integral inputs.");
  const Tensor weights = call.tensor(1);
  TORCH_CHECK(!weights.defined() || (weights.dim() == 1 && weights.numel() == self.numel()),
              "weights should be 1-d and have the same length as input");
}

void convolved(const Call& call) {  // (input, weight, ...)
  const ScalarType type = call.tensor(0).scalar_type();
  TORCH_CHECK(!c10::isIntegralType(type, /*includeBool=*/true),
              "getCudnnDataTypeFromScalarType() not supported for ", type);
}

// Checks _fft_r2c(self, dim, ...), _fft_c2c(self, dim, ...) and _fft_c2r(self, dim, normalization,
// size of the last dimension).
void transformed(const Call& call) {
  const Tensor self = call.tensor(0);
  if (self.scalar_type() != at::kHalf && self.scalar_type() != at::kComplexHalf) return;
  const std::vector<std::int64_t> dims = call.argument(1).toIntVector();
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const bool is_last = i + 1 == dims.size();
    const bool is_given = is_last && call.info().plain_name.starts_with("_fft_c2r");
    const std::int64_t size = is_given ? call.argument(3).toInt() : self.size(dims[i]);
    TORCH_CHECK(size > 0 && (size & (size - 1)) == 0,
                "cuFFT only supports dimensions whose sizes are powers of two when computing in "
                "half precision, but got a signal size of[",
                size, "]");
  }
}

// A row of the table of checks that need more than the type of the operands.
struct TypeCheck {
  const char* name;
  void (*check)(const Call&);
};

const NamedRows<TypeCheck> kTypeChecks{
    {"native_layer_norm", normalized_layer},
    {"native_group_norm", normalized_group},
    {"nll_loss_forward", weighted_classes},
    {"nll_loss2d_forward", weighted_classes},
    {"grid_sampler_2d", sampled_by_grid},
    {"grid_sampler_3d", sampled_by_grid},
    {"binary_cross_entropy", same_as_target},
    {"index_select", selected},
    {"index_fill", filled},
    {"bincount", counted_types},
    {"cudnn_convolution", convolved},
    {"cudnn_convolution_transpose", convolved},
    {"_conv_depthwise2d", convolved},
    {"_fft_r2c", transformed},
    {"_fft_c2c", transformed},
    {"_fft_c2r", transformed},
};

}  // namespace

void check_types(Call& call) {
  std::string_view name = call.info().plain_name;
  if (name.ends_with('_')) name.remove_suffix(1);
  if (const KernelTypes* const row = NamedRows<KernelTypes>::find(name)) {
    const bool is_converted = call.info().is_pointwise;
    const ScalarType type = is_converted ? common_type(call) : call.tensor(0).scalar_type();
    TORCH_CHECK_NOT_IMPLEMENTED(takes(row->types, type) || returns_early(*row, call), '"',
                                row->kernel, "\" not implemented for '", type, "'");
  }
  if (const TypeCheck* const row = NamedRows<TypeCheck>::find(name)) row->check(call);
}

void check_embedding_indices(const Tensor& indices) {
  const ScalarType type = indices.scalar_type();
  TORCH_CHECK(type == at::kLong || type == at::kInt,
              "Expected tensor for argument #1 'indices' to have one of the following scalar "
              "types: Long, Int; but got ",
              indices.toString(), " instead (while checking arguments for embedding)");
}

}  // namespace plimsoll::simulated
