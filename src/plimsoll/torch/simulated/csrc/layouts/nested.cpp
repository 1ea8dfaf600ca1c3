// Nested tensors in strided layout: matrices of different lengths, one after the other in a buffer
// (aten/src/ATen/native/nested/cuda/, transformers/cuda/attention.cu). Nested tensors in jagged
// layout need no kernels: PyTorch's Python code calls operations on their parts.
#include <ATen/NestedTensorImpl.h>
#include <ATen/native/layer_norm.h>
#include <ATen/native/nested/NestedTensorBinaryOps.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_nested_from_padded.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/to_padded_tensor.h>
#include <ATen/ops/zeros.h>

#include <optional>
#include <tuple>
#include <vector>

#include "layouts/kernel.h"
#include "layouts/layouts.h"
#include "rules/attention_choice.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;
using at::native::get_nested_tensor_impl;

Tensor wrap(const Tensor& buffer, const Tensor& sizes) {
  return at::detail::make_tensor<at::native::NestedTensorImpl>(buffer, sizes);
}

// Returns the bytes of an array that holds `numbers` 32-bit integers: the sizes and offsets that
// kernels read on the device.
std::size_t description_bytes(std::int64_t numbers) {
  return static_cast<std::size_t>(numbers) * sizeof(std::int32_t);
}

// --- padding -------------------------------------------------------------------------------------

Tensor from_padded(const Tensor& padded, const Tensor& sizes, bool turns_heads) {
  TORCH_CHECK_NOT_IMPLEMENTED(padded.dim() == (turns_heads ? 4 : 3),
                              "plimsoll cannot simulate the operation aten::_nested_from_padded ",
                              "with tensors of ", padded.dim(), " dimensions");
  const LayoutKernel kernel("aten::_nested_from_padded", padded);
  const Tensor buffer = at::empty({sizes.prod(1).sum().item<std::int64_t>()}, padded.options());
  const std::int64_t numbers = sizes.size(0) + 1 + sizes.numel() + padded.dim();
  const at::DataPtr description = kernel.temporary(description_bytes(numbers));
  {
    const at::DataPtr wide = kernel.temporary(2 * description_bytes(numbers));
  }
  const Tensor read = padded.contiguous();
  kernel.launch(2 * bytes_of_all({buffer}));
  note_as(buffer, padded);
  return wrap(buffer, sizes);
}

Tensor to_padded(const Tensor& self, double padding, at::OptionalIntArrayRef output_size) {
  const auto* const impl = get_nested_tensor_impl(self);
  const Tensor sizes = impl->get_nested_sizes();
  TORCH_CHECK_NOT_IMPLEMENTED(self.dim() >= 2 && self.dim() <= 4 && sizes.numel() != 0,
                              "plimsoll cannot simulate the operation aten::to_padded_tensor on ",
                              "nested tensors of ", self.dim(), " dimensions");
  const LayoutKernel kernel("aten::to_padded_tensor", self);
  std::vector<std::int64_t> padded{sizes.size(0)};
  const Tensor most = std::get<0>(sizes.max(0));
  for (std::int64_t d = 0; d < most.numel(); ++d) padded.push_back(most[d].item<std::int64_t>());
  if (output_size) {
    TORCH_CHECK(output_size->size() == padded.size(),
                "Length of output_size does not match NestedTensor dims. Broadcasting is not ",
                "supported.");
    for (std::size_t d = 0; d < padded.size(); ++d) {
      TORCH_CHECK((*output_size)[d] >= padded[d],
                  "Value in output_size is less than NestedTensor padded size. Truncation is not ",
                  "supported.");
      padded[d] = (*output_size)[d];
    }
  }
  Tensor result = at::empty(padded, impl->get_buffer().options());
  // If all rows have one width, the kernel treats each matrix as one long row.
  const bool is_flat = self.dim() == 3 && impl->opt_size(2).value_or(0) > 0 && !output_size;
  const std::int64_t batch = sizes.size(0);
  const at::DataPtr description =
      kernel.temporary(description_bytes(batch + 1 + (is_flat ? batch : sizes.numel())));
  kernel.launch(2 * bytes_of_all({result}));
  note_padded(result, impl->get_buffer(), padding);
  return result;
}

// --- attention -----------------------------------------------------------------------------------

// Returns all rows as one tensor, from a nested tensor with dimensions batch, heads, rows, width.
Tensor rows_of(const Tensor& nested) {
  const auto* const impl = get_nested_tensor_impl(nested);
  const Tensor sizes = impl->get_nested_sizes();
  const Tensor strides = impl->get_nested_strides();
  const auto number = [](const Tensor& of, std::int64_t column) {
    return of[0][column].item<std::int64_t>();
  };
  return impl->get_unsafe_storage_as_tensor().as_strided(
      {sizes.select(1, 1).sum().item<std::int64_t>(), number(sizes, 0), number(sizes, 2)},
      {number(strides, 1), number(strides, 0), 1},
      impl->get_storage_offsets()[0].item<std::int64_t>());
}

// An operand of a fused attention kernel: the rows of all matrices in one tensor, and where each
// matrix starts.
struct Packed {
  explicit Packed(const Tensor& nested)
      : sizes(get_nested_tensor_impl(nested)->get_nested_sizes()), rows(rows_of(nested)) {
    const Tensor lengths = sizes.select(1, 1);
    longest = lengths.max().item<std::int64_t>();
    starts = at::zeros({sizes.size(0) + 1}, lengths.options().dtype(at::kInt));
    starts.narrow(0, 1, sizes.size(0)).copy_(lengths.cumsum(0));
    starts = starts.to(rows.device());
  }
  Tensor sizes, rows, starts;
  std::int64_t longest = 0;
};

Tensor attend(const Tensor& query, const Tensor& key, const Tensor& value, double dropout,
              bool is_causal, std::optional<double> scale) {
  const Packed queries(query);
  const Packed keys(key);
  const Tensor values = rows_of(value);
  const auto call_like = [](const Tensor& rows) { return rows.transpose(0, 1).unsqueeze(0); };
  const std::int64_t choice =
      choose_attention({call_like(queries.rows), call_like(keys.rows), call_like(values), Tensor(),
                        dropout, is_causal, false});
  Tensor out;
  // `choice` may be cuDNN's kernel, but that kernel does not accept nested tensors. So half
  // precision always uses the flash kernel.
  if (query.scalar_type() != at::kFloat && query.scalar_type() != at::kDouble) {
    out = std::get<0>(at::_flash_attention_forward(queries.rows, keys.rows, values, queries.starts,
                                                   keys.starts, queries.longest, keys.longest,
                                                   dropout, is_causal, false, scale));
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(
        choice == static_cast<std::int64_t>(at::SDPBackend::efficient_attention),
        "plimsoll cannot simulate attention of nested tensors that no ", "fused kernel takes");
    out = std::get<0>(at::_efficient_attention_forward(
                          queries.rows.unsqueeze(0), keys.rows.unsqueeze(0), values.unsqueeze(0),
                          std::nullopt, queries.starts, keys.starts, queries.longest, keys.longest,
                          dropout, is_causal ? 1 : 0, false, scale))
              .squeeze(0);
  }
  const Tensor sizes = at::stack(
      {queries.sizes.select(1, 1), queries.sizes.select(1, 0), queries.sizes.select(1, 2)}, 1);
  return wrap(out.view({-1}), sizes).transpose(1, 2);
}

std::tuple<Tensor, Tensor> native_attention(const Tensor& query, const Tensor& key,
                                            const Tensor& value, std::int64_t width,
                                            std::int64_t heads, const Tensor& joint_weight,
                                            const Tensor& joint_bias, const Tensor& out_weight,
                                            const Tensor& out_bias,
                                            const std::optional<Tensor>& mask, bool needs_weights,
                                            bool, std::optional<std::int64_t>) {
  const bool is_self = query.is_same(key) && key.is_same(value);
  TORCH_CHECK_NOT_IMPLEMENTED(is_self && !needs_weights && !(mask && mask->defined()),
                              "plimsoll cannot simulate attention of nested tensors that no fused ",
                              "kernel takes");
  const Tensor joint = at::linear(query, joint_weight, joint_bias);
  const std::int64_t batch = joint.size(0);
  std::vector<Tensor> parts = joint.chunk(3, -1);
  for (Tensor& part : parts) part = part.view({batch, -1, heads, width / heads}).transpose(1, 2);
  const Tensor attended = attend(parts[0], parts[1], parts[2], 0, false, std::nullopt);
  const Tensor rows = attended.transpose(1, 2).reshape({batch, -1, width});
  return {at::linear(rows, out_weight, out_bias), Tensor()};
}

// --- kernels that PyTorch's code for all devices calls -------------------------------------------

void layer_norm(const Tensor& input, const Tensor&, const Tensor&, std::int64_t, std::int64_t,
                double, Tensor* output, Tensor*, Tensor*) {
  const LayoutKernel kernel("aten::native_layer_norm", input);
  kernel.launch(2 * bytes_of_all({input}));
  note_as(*output, Tensor());
}

void add_dense(Tensor& result, const Tensor& self, const Tensor&,
               const at::native::NESTED_DENSE_OP&) {
  const LayoutKernel kernel("aten::add", self);
  const Tensor buffer = get_nested_tensor_impl(result)->get_buffer();
  kernel.launch(2 * bytes_of_all({buffer}));
  note_as(buffer, Tensor());
}

}  // namespace

void add_nested_kernels(WrittenOut& kernels) {
  at::native::LayerNormKernel.set_cuda_dispatch_ptr(&layer_norm);
  at::native::nested_dense_elementwise_stub.set_cuda_dispatch_ptr(&add_dense);
  kernels.add("to_padded_tensor", TORCH_FN(to_padded));
  kernels.add("_native_multi_head_attention", TORCH_FN(native_attention));
}

void add_padding_kernels(WrittenOut& kernels) {
  kernels.add("_nested_from_padded", TORCH_FN(from_padded));
}

}  // namespace plimsoll::simulated
