// Operations on images and on windows over them: resampling, pooling, unfolding. Many kernels
// support only one memory layout; tensors in other layouts are copied.
#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <vector>

#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

bool is_channels_last(const at::Tensor& tensor) {
  return tensor.dim() == 4 && !tensor.is_contiguous() &&
         tensor.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
}

void contiguous_input(Call& call) { copy_unless_contiguous(call, call.tensor(0)); }

// Simulates a kernel that supports only the contiguous layout. For each result that has another
// layout, PyTorch allocates a contiguous tensor, which the kernel writes instead. If the input has
// another layout, PyTorch then makes a contiguous copy of the input.
void plain_layout(Call& call) {
  call.allocate_all();
  for (std::size_t i = 0; i < call.info().results.size(); ++i) {
    const at::Tensor result = call.shape_of_result(i);
    if (result.defined() && !result.is_contiguous()) call.temporary(bytes_of(result));
  }
  contiguous_input(call);
}

// Simulates resampling. The channels-last kernel needs at least four channels. For images with
// fewer channels, PyTorch makes contiguous copies and runs the kernel for contiguous images.
void upsample(Call& call) {
  call.allocate_all();
  const at::Tensor input = call.tensor(0);
  if (is_channels_last(input) && input.size(1) >= 4) return;
  plain_layout(call);
}

void contiguous_gradient(Call& call) {
  call.allocate_all();
  contiguous_input(call);
}

void adaptive_max_pool_backward(Call& call) {
  call.allocate_all();
  contiguous_input(call);
  copy_unless_contiguous(call, call.tensor(2));
  copy_unless_contiguous(call, call.shape_of_result(0));
}

// Simulates the gradient of Tensor.unfold. The kernel needs an array of the positions along the
// dimension.
void unfold_backward(Call& call) {
  call.allocate_all();
  const std::vector<std::int64_t> sizes = call.argument(1).toIntVector();
  if (sizes.empty()) return;
  const std::int64_t dim =
      c10::maybe_wrap_dim(call.argument(2).toInt(), static_cast<std::int64_t>(sizes.size()));
  const std::int64_t size = call.argument(3).toInt();
  const std::int64_t step = call.argument(4).toInt();
  const std::int64_t windows = call.tensor(0).size(dim);
  const std::int64_t length =
      std::min(sizes[static_cast<std::size_t>(dim)], (windows - 1) * step + size);
  call.temporary(static_cast<std::size_t>(length) * sizeof(std::int64_t));
}

// Unfolds windows into columns, or folds columns back. The kernel first allocates a result of the
// input's size and then resizes it.
void columns(Call& call) {
  const at::Tensor input = call.tensor(0);
  const at::Tensor result = call.shape_of_result(0);
  if (elements(result) > elements(input)) {
    const std::size_t first = call.temporary(bytes_of(input));
    call.allocate(0);
    call.release(first);
    return;
  }
  const at::Tensor storage = meta_empty({input.numel()}, input.scalar_type());
  call.set_shape(0, storage.as_strided(result.sizes(), result.strides()));
}

// Takes memory for a contiguous copy if elements of the tensor share addresses, as after `expand`.
void copy_if_expanded(Call& call, const at::Tensor& tensor) {
  if (std::ranges::count(tensor.strides(), 0) != 0) copy_unless_contiguous(call, tensor);
}

// Simulates cudnn_grid_sampler(input, grid). PyTorch calls it for floats, if `grid_sample`
// interpolates linearly, pads with zeros and aligns corners.
void grid_sampler(Call& call) {
  const at::Tensor input = call.tensor(0);
  const at::Tensor grid = call.tensor(1);
  copy_if_expanded(call, input);
  copy_unless_contiguous(call, grid);
  call.set_shape(0, meta_empty({input.size(0), input.size(1), grid.size(1), grid.size(2)},
                               input.scalar_type()));
  call.allocate(0);
}

// Simulates cudnn_grid_sampler_backward(input, grid, grad_output).
void grid_sampler_backward(Call& call) {
  copy_if_expanded(call, call.tensor(0));
  copy_unless_contiguous(call, call.tensor(1));
  copy_if_expanded(call, call.tensor(2));
  for (const std::size_t result : {0, 1}) {
    call.set_shape(result, meta_contiguous(call.tensor(result)));
    call.allocate(result);
  }
}

// Simulates the gradient of fractional_max_pool3d, which has the input's sizes.
void fractional_pool_backward(Call& call) {
  call.set_shape(0, meta_contiguous(call.tensor(1)));
  call.allocate(0);
}

const RuleTable kImageRules{
    {"upsample_nearest2d", upsample},
    {"_upsample_nearest_exact2d", upsample},
    {"upsample_nearest2d_backward", upsample},
    {"_upsample_nearest_exact2d_backward", upsample},
    {"upsample_bilinear2d_backward", upsample},
    {"upsample_bicubic2d_backward", contiguous_gradient},
    {"upsample_trilinear3d_backward", contiguous_gradient},
    {"_upsample_bilinear2d_aa", plain_layout},
    {"_upsample_bicubic2d_aa", plain_layout},
    {"_upsample_bilinear2d_aa_backward", contiguous_gradient},
    {"_upsample_bicubic2d_aa_backward", contiguous_gradient},
    {"adaptive_max_pool2d", plain_layout},
    {"adaptive_max_pool2d_backward", adaptive_max_pool_backward},
    {"unfold_backward", unfold_backward},
    {"im2col", columns},
    {"col2im", columns},
    {"cudnn_grid_sampler", grid_sampler},
    {"cudnn_grid_sampler_backward", grid_sampler_backward},
    {"fractional_max_pool3d_backward", fractional_pool_backward},
};

}  // namespace
}  // namespace plimsoll::simulated
