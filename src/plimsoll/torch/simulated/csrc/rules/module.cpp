// Losses, activations, resampling, pooling, lists of tensors, fused transformer layers, and what is
// left.
#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <vector>

#include "../blas.h"
#include "rules.h"

namespace plimsoll::simulated {
namespace {

// A number that keeps the memory of `count` elements.
at::Tensor number_in(std::size_t count, at::ScalarType type) {
  return meta_empty({static_cast<std::int64_t>(count)}, type).as_strided({}, {});
}

// Many kernels read contiguous memory only.
void copy_if_strided(Call& call, const at::Tensor& tensor) {
  if (!tensor.is_contiguous()) call.temporary(bytes_of(tensor));
}

// --- losses --------------------------------------------------------------------------------------

// Partial results and semaphores of a sum over all of `count` contiguous elements, where several
// blocks share it: at least 16 values a thread, and no more blocks than the chip holds at once.
void total(Call& call, std::size_t count) {
  constexpr std::size_t kThreads = 512;
  const std::size_t vectors = count >= 128 ? count / 4 : count;
  const std::size_t threads = vectors == 0 ? 1 : std::min(kThreads, std::bit_floor(vectors));
  const std::size_t per_thread = (count + threads - 1) / threads;
  if (per_thread < 256) return;
  const auto most = static_cast<std::size_t>(call.properties().multiprocessors) * (2048 / threads);
  const std::size_t blocks =
      std::max(std::min(most, (per_thread + 15) / 16), (per_thread + 255) / 256);
  if (blocks < 2) return;
  const std::size_t partial = call.temporary(blocks * sizeof(float));
  const std::size_t semaphores = call.temporary(sizeof(int));
  call.release(semaphores);
  call.release(partial);
}

std::size_t broadcast_elements(const at::Tensor& first, const at::Tensor& second) {
  return static_cast<std::size_t>(
      c10::multiply_integers(at::infer_size(first.sizes(), second.sizes())));
}

bool is_reduced(const Call& call, std::size_t argument) {
  return call.argument(argument).toInt() != 0;
}

// The result has room for every element's loss, and shrinks to one number.
void elementwise_loss(Call& call) {
  if (!is_reduced(call, 2)) return;
  const at::Tensor input = call.tensor(0);
  const std::size_t count = broadcast_elements(input, call.tensor(1));
  call.set_shape(0, number_in(count, input.scalar_type()));
  call.allocate(0);
  const std::size_t losses = call.temporary(count * input.itemsize());
  total(call, count);
  call.release(losses);
}

void huber_loss(Call& call) {
  if (!is_reduced(call, 2)) return;
  const at::Tensor input = call.tensor(0);
  const std::size_t count = broadcast_elements(input, call.tensor(1));
  const std::size_t losses = call.temporary(count * input.itemsize());
  call.allocate(0);
  total(call, count);
  call.release(losses);
}

void binary_cross_entropy(Call& call) {
  if (!is_reduced(call, 3)) return;
  const at::Tensor input = call.tensor(0);
  call.set_shape(0, number_in(elements(input), input.scalar_type()));
  call.allocate(0);
  const std::size_t number = call.temporary(input.itemsize());
  total(call, elements(input));
  call.release(number);
}

// Normal numbers with a mean for each: a tensor of deviations, or one number for the mean.
void normal_around(Call& call) { call.temporary(bytes_of(call.allocate(0))); }

void normal_of_width(Call& call) { call.temporary(call.allocate(0).itemsize()); }

// Images without a reduction: the total weight first.
void nll_loss2d(Call& call) {
  if (!is_reduced(call, 3)) call.allocate(1);
}

// Copies of what is not contiguous, the input among them, of which the backward pass reads nothing.
void nll_loss(Call& call) {
  call.allocate_all();
  for (const std::size_t argument : {0, 1}) copy_if_strided(call, call.tensor(argument));
}

void nll_loss_backward(Call& call) {
  call.allocate_all();
  for (const std::size_t argument : {2, 1, 0}) copy_if_strided(call, call.tensor(argument));
}

// --- softmax and activations ---------------------------------------------------------------------

void softmax(Call& call) {
  call.allocate_all();
  copy_if_strided(call, call.tensor(0));
}

void log_softmax_backward(Call& call) {
  call.allocate_all();
  for (const std::size_t argument : {0, 1}) copy_if_strided(call, call.tensor(argument));
}

void softmax_backward(Call& call) {
  call.allocate_all();
  const at::Tensor grad = call.tensor(0);
  call.temporary(bytes_of(grad));  // grad times output
  copy_if_strided(call, call.tensor(1));
}

// Only the CPU's kernel fills the second result.
void log_sigmoid(Call& call) {
  call.infer();
  call.set_shape(1, meta_empty({0}, call.tensor(0).scalar_type()));
}

// (output, mask)
void dropout(Call& call) {
  const bool trains = call.argument(2).isNone() || call.argument(2).toBool();
  if (trains && call.argument(1).toDouble() != 1) call.allocate(1);
}

// A number to the power of a tensor: the number is put on the device.
void power_of_number(Call& call) {
  call.allocate_all();
  const c10::Scalar base = call.argument(0).toScalar();
  if (!base.isComplex() && base.toDouble() == 1) return;
  call.temporary(base.isComplex() ? 16 : base.isBoolean() ? 1 : 8);
}

// --- images --------------------------------------------------------------------------------------

bool is_channels_last(const at::Tensor& tensor) {
  return tensor.dim() == 4 && !tensor.is_contiguous() &&
         tensor.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
}

void contiguous_input(Call& call) { copy_if_strided(call, call.tensor(0)); }

// Kernels for the plain layout only: copies of results, then of the input.
void plain_layout(Call& call) {
  call.allocate_all();
  for (std::size_t i = 0; i < call.info().results.size(); ++i) {
    const at::Tensor result = call.shape_of_result(i);
    if (result.defined() && !result.is_contiguous()) call.temporary(bytes_of(result));
  }
  contiguous_input(call);
}

// Few channels have no kernel for their layout.
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
  copy_if_strided(call, call.tensor(2));
  copy_if_strided(call, call.shape_of_result(0));
}

// Several dimensions are rolled one after the other.
void roll(Call& call) {
  const at::Tensor input = call.tensor(0);
  const std::size_t dims = call.argument(2).toIntVector().size();
  for (std::size_t i = 1; i < dims; ++i) call.temporary(bytes_of(input));
  if (dims < 2 && !input.is_contiguous()) call.temporary(bytes_of(input));
}

// The gradient of Tensor.unfold: positions along the dimension.
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

// Sliding windows as columns, and back: the result starts as large as the input, then is resized.
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

// How often each row is repeated is known on the device only.
void repeat_interleave(Call& call) {
  const at::Tensor repeats = call.tensor(0);
  const std::size_t ends = call.temporary(elements(repeats) * sizeof(std::int64_t));
  const std::size_t scan = call.temporary(1279);  // cub's, for a small scan
  call.release(scan);
  const std::size_t negative = call.temporary(elements(repeats));
  const std::size_t any_negative = call.temporary(1);
  call.release(any_negative);
  call.release(negative);
  std::int64_t total_rows = repeats.numel();
  if (!call.argument(1).isNone()) {
    total_rows = call.argument(1).toInt();
  } else if (const at::Tensor values = has_values(repeats) ? values_of(repeats) : at::Tensor();
             values.defined()) {
    call.synchronize();
    total_rows = values.sum().item<std::int64_t>();
  } else {
    call.synchronize();
    call.assume("each row is taken once");
  }
  call.set_shape(0, meta_empty({total_rows}, repeats.scalar_type()));
  call.allocate(0);
  call.release(ends);
}

// --- lists of tensors ----------------------------------------------------------------------------

bool is_fast_list(const std::vector<at::Tensor>& list) {
  return std::all_of(list.begin(), list.end(), [&](const at::Tensor& tensor) {
    return tensor.is_cuda() && tensor.device() == list[0].device() &&
           tensor.scalar_type() == list[0].scalar_type() && tensor.is_non_overlapping_and_dense();
  });
}

// One number for each tensor and chunk of it.
std::size_t chunk_results(const std::vector<at::Tensor>& list) {
  constexpr std::size_t kChunk = 65536;
  std::size_t chunks = 0;
  for (const at::Tensor& tensor : list) {
    chunks = std::max(chunks, (elements(tensor) + kChunk - 1) / kChunk);
  }
  return list.size() * chunks;
}

void foreach_norm(Call& call) {
  const std::vector<at::Tensor> list = call.tensors(0);
  const double order = call.argument(1).isNone() ? 2 : call.argument(1).toScalar().toDouble();
  if (list.empty() || !is_fast_list(list)) return;
  if (order != 1 && order != 2 && !std::isinf(order)) return;
  const std::size_t item = std::max<std::size_t>(list[0].itemsize(), sizeof(float));
  const std::size_t partial = call.temporary(chunk_results(list) * item);
  call.allocate_all();
  call.release(partial);
}

void foreach_max(Call& call) {
  const std::vector<at::Tensor> list = call.tensors(0);
  if (list.empty() || !is_fast_list(list)) return;
  call.allocate_all();
  call.temporary(chunk_results(list) * list[0].itemsize());
}

// --- distances and Fourier transforms ------------------------------------------------------------

// Gradients of every pair, before they are summed.
void cdist_backward(Call& call) {
  call.allocate_all();
  const at::Tensor grad = call.tensor(0);
  const at::Tensor points = call.tensor(1);
  call.temporary(elements(grad) * static_cast<std::size_t>(points.size(-1)) * points.itemsize());
}

void pdist_backward(Call& call) {
  call.allocate_all();
  const at::Tensor points = call.tensor(1);
  if (points.size(0) > 1) {
    call.temporary(bytes_of(points) * static_cast<std::size_t>(points.size(0) - 1));
  }
}

// Lengths that one kernel of cuFFT cannot do: long ones and those with large prime factors. The
// bounds are fitted: 1023 = 3 * 11 * 31 and shorter ones take nothing; 129 = 3 * 43 and 65536 do.
bool has_factor_above(std::int64_t length, std::int64_t bound) {
  for (std::int64_t factor = 2; factor <= bound; ++factor) {
    while (length % factor == 0) length /= factor;
  }
  return length > 1;
}

bool needs_fft_workspace(std::int64_t length) {
  return length > 8192 || has_factor_above(length, 31);
}

// Lengths with factors that cuFFT has no kernel for become convolutions of a power of two.
std::size_t convolution_fft_bytes(std::size_t length, std::size_t item) {
  return item * (2 * std::bit_ceil(2 * length) + length) + 512;
}

std::size_t complex_bytes(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble || tensor.scalar_type() == at::kComplexDouble ? 16 : 8;
}

// cuFFT's workspace for transforms of real data.
void real_fft_workspace(Call& call, const at::Tensor& real, std::int64_t length) {
  const std::size_t item = complex_bytes(real);
  const auto size = static_cast<std::size_t>(length);
  const std::size_t rows = elements(real) / size;
  if (has_factor_above(length, 127)) {
    call.temporary(rows * convolution_fft_bytes(length % 2 != 0 ? size : size / 2, item));
  } else if (length % 2 != 0 && length > 512) {  // fitted, as is the next line
    call.temporary(rows * (size * item + item / 2));
  } else if (needs_fft_workspace(length)) {
    call.temporary(rows * (length % 2 != 0 ? size * item + item / 2 : (size / 2 + 1) * item));
  } else {
    return;
  }
  call.release_last();
}

// Up to three dimensions are transformed at once, but not where they are the first two.
bool is_one_transform(const std::vector<std::int64_t>& dims) {
  return dims.size() == 1 || (dims.size() <= 3 && !(dims[0] == 0 && dims[1] == 1));
}

void fft_of_real(Call& call) {
  const at::Tensor input = call.tensor(0);
  const std::vector<std::int64_t> dims = call.argument(1).toIntVector();
  const at::Tensor result = call.shape_of_result(0);
  if (dims.empty() || elements(input) == 0) return;
  if (is_one_transform(dims)) {
    call.allocate(0);
  } else {
    call.temporary(bytes_of(result));
  }
  real_fft_workspace(call, input, input.size(dims.back()));
}

void fft_to_real(Call& call) {
  const at::Tensor input = call.tensor(0);
  const std::vector<std::int64_t> dims = call.argument(1).toIntVector();
  const at::Tensor result = call.allocate(0);
  if (dims.empty() || elements(result) == 0) return;
  call.temporary(bytes_of(input));  // the transform overwrites what it reads
  const std::int64_t length = result.size(dims.back());
  if (needs_fft_workspace(length)) real_fft_workspace(call, result, length);
}

void fft_of_complex(Call& call) {
  const at::Tensor input = call.tensor(0);
  call.allocate_all();
  for (const std::int64_t dim : call.argument(1).toIntVector()) {
    if (const std::int64_t length = input.size(dim); has_factor_above(length, 127)) {
      const auto size = static_cast<std::size_t>(length);
      call.temporary(elements(input) / size * convolution_fft_bytes(size, complex_bytes(input)));
      return;
    }
    if (needs_fft_workspace(input.size(dim))) {
      call.temporary(bytes_of(input));
      return;
    }
  }
}

// --- fused transformer layers --------------------------------------------------------------------

// A layer with a bias.
std::size_t linear(Call& call, std::size_t bytes) {
  const std::size_t made = call.temporary(bytes);
  take_lt_workspace(call);
  return made;
}

// Attention without weights: cuDNN's for half precision, else the memory-efficient kernel.
std::size_t fused_attention(Call& call, const at::Tensor& query) {
  if (query.itemsize() != 2) return call.temporary(bytes_of(query));
  const std::size_t seed = call.temporary(8);
  const std::size_t offset = call.temporary(8);
  const std::size_t output = call.temporary(bytes_of(query));
  const std::size_t workspace = call.temporary(256);
  for (const std::size_t temporary : {workspace, seed, offset}) call.release(temporary);
  return output;
}

// The scores, their softmax and the weighted values, up to what the last layer reads.
struct Weighted {
  std::size_t inner;
  std::size_t scores;
  std::size_t context;
};

Weighted plain_attention(Call& call, const at::Tensor& query, std::int64_t heads,
                         const at::Tensor& mask) {
  const std::size_t bytes = bytes_of(query);
  const auto steps = static_cast<std::size_t>(query.size(1));
  const std::size_t scores_bytes =
      static_cast<std::size_t>(query.size(0) * heads) * steps * steps * query.itemsize();
  const std::size_t joint = call.temporary(3 * bytes);
  take_blas_workspace(call);
  const std::size_t split = call.temporary(3 * bytes);
  call.release(joint);
  std::size_t scores = call.temporary(scores_bytes);
  take_blas_workspace(call);
  if (mask.defined()) {
    const std::size_t masked = call.temporary(scores_bytes);
    call.release(scores);
    scores = masked;
  }
  const std::size_t context = call.temporary(bytes);
  take_blas_workspace(call);
  return {split, scores, context};
}

// (output, weights)
void native_attention(Call& call) {
  const at::Tensor query = call.tensor(0);
  const bool needs_weights = call.argument(10).toBool();
  const at::Tensor mask = call.tensor(9);
  const bool is_self = query.is_same(call.tensor(1)) && query.is_same(call.tensor(2));
  if (!needs_weights && is_self && !mask.defined()) {
    const std::size_t joint = linear(call, 3 * bytes_of(query));
    const std::size_t attention = fused_attention(call, query);
    call.allocate(0);
    take_lt_workspace(call);
    call.release(attention);
    call.release(joint);
    return;
  }
  const Weighted weighted = plain_attention(call, query, call.argument(4).toInt(), mask);
  call.allocate(0);
  take_lt_workspace(call);
  call.release(weighted.context);
  call.allocate(1);
  call.release(weighted.scores);
  call.release(weighted.inner);
}

void encoder_layer(Call& call) {
  const at::Tensor input = call.tensor(0);
  const at::Tensor mask = call.tensor(18);
  const bool norm_first = call.argument(8).toBool();
  const std::size_t bytes = bytes_of(input);
  const auto width = static_cast<std::size_t>(input.size(-1));
  const std::size_t rows = width == 0 ? 0 : elements(input) / width;
  const auto inner_width = static_cast<std::size_t>(call.tensor(14).size(0));
  call.set_shape(0, meta_empty(input.sizes(), input.scalar_type()));

  // A norm keeps means and deviations until it is done; the last one of a layer is its result.
  const auto norm = [&](bool is_result) {
    std::size_t output = 0;
    if (is_result) {
      call.allocate(0);
    } else {
      output = call.temporary(bytes);
    }
    const std::size_t means = call.temporary(rows * sizeof(float));
    const std::size_t deviations = call.temporary(rows * sizeof(float));
    call.release(means);
    call.release(deviations);
    return output;
  };
  const std::size_t first = norm_first ? norm(false) : 0;
  std::size_t attended = 0;
  if (mask.defined()) {
    const Weighted weighted = plain_attention(call, input, call.argument(2).toInt(), mask);
    attended = linear(call, bytes);
    for (const std::size_t temporary : {weighted.context, weighted.scores, weighted.inner}) {
      call.release(temporary);
    }
  } else {
    const std::size_t joint = linear(call, 3 * bytes);
    const std::size_t attention = fused_attention(call, input);
    attended = linear(call, bytes);
    call.release(attention);
    call.release(joint);
  }
  if (norm_first) call.release(first);
  const std::size_t second = norm(false);
  if (!norm_first) call.release(attended);
  const std::size_t inner = linear(call, rows * inner_width * input.itemsize());
  if (norm_first) {
    call.allocate(0);
    take_lt_workspace(call);
    call.release(inner);
    call.release(second);
    call.release(attended);
    return;
  }
  const std::size_t outer = linear(call, bytes);
  call.release(inner);
  norm(true);
  call.release(outer);
  call.release(second);
}

constexpr RuleRow kModuleRules[] = {
    {"mse_loss", elementwise_loss},
    {"smooth_l1_loss", elementwise_loss},
    {"huber_loss", huber_loss},
    {"binary_cross_entropy", binary_cross_entropy},
    {"nll_loss2d_forward", nll_loss2d},
    {"nll_loss_backward", nll_loss_backward},
    {"nll_loss_forward", nll_loss},
    {"native_dropout", dropout},
    {"_softmax", softmax},
    {"_log_softmax", softmax},
    {"_softmax_backward_data", softmax_backward},
    {"_log_softmax_backward_data", log_softmax_backward},
    {"log_sigmoid_forward", log_sigmoid},
    {"aten::normal.Tensor_float", normal_around},
    {"aten::normal.float_Tensor", normal_of_width},
    {"aten::pow.Scalar", power_of_number},
    {"upsample_nearest2d", upsample},
    {"_upsample_nearest_exact2d", upsample},
    {"upsample_bilinear2d", nothing},
    {"upsample_bicubic2d", nothing},
    {"upsample_nearest2d_backward", upsample},
    {"_upsample_nearest_exact2d_backward", upsample},
    {"upsample_bilinear2d_backward", upsample},
    {"upsample_bicubic2d_backward", contiguous_gradient},
    {"_upsample_bilinear2d_aa", plain_layout},
    {"_upsample_bicubic2d_aa", plain_layout},
    {"_upsample_bilinear2d_aa_backward", contiguous_gradient},
    {"_upsample_bicubic2d_aa_backward", contiguous_gradient},
    {"adaptive_max_pool2d", plain_layout},
    {"adaptive_max_pool2d_backward", adaptive_max_pool_backward},
    {"roll", roll},
    {"unfold_backward", unfold_backward},
    {"im2col", columns},
    {"col2im", columns},
    {"aten::repeat_interleave.Tensor", repeat_interleave},
    {"_foreach*", kUnknown, kOnLists | kMixesDevices},
    {"_fused*", kUnknown, kMixesDevices},
    {"_amp_foreach_non_finite_check_and_unscale_", nothing, kFindsFinite},
    {"_foreach_norm", foreach_norm},
    {"_foreach_max", foreach_max},
    {"_cdist_backward", cdist_backward},
    {"_pdist_backward", pdist_backward},
    {"_fft_r2c", fft_of_real},
    {"_fft_c2r", fft_to_real},
    {"_fft_c2c", fft_of_complex},
    {"_native_multi_head_attention", native_attention},
    {"_transformer_encoder_layer_fwd", encoder_layer},
    {"zero_", nothing, kOverwrites},
    {"fill_", nothing, kOverwrites},
    {"arange", nothing, kOverwrites},
    {"range", kUnknown, kOverwrites},
    {"linspace", nothing, kOverwrites},
    {"logspace", nothing, kOverwrites},
    {"eye", nothing, kOverwrites},
    {"random_", nothing, kOverwrites},
    {"normal_", nothing, kOverwrites},
    {"uniform_", nothing, kOverwrites},
    {"bernoulli_", nothing, kOverwrites},
};

// Checked to take nothing besides their results.
constexpr const char* kNothingInside[] = {
    // losses and activations
    "binary_cross_entropy_backward",
    "elu_backward",
    "glu",
    "glu_backward",
    "hardsigmoid_backward",
    "hardswish",
    "hardswish_backward",
    "hardtanh_backward",
    "huber_loss_backward",
    "leaky_relu",
    "leaky_relu_backward",
    "log_sigmoid_backward",
    "mish_backward",
    "mse_loss_backward",
    "nll_loss2d_backward",
    "_prelu_kernel",
    "_prelu_kernel_backward",
    "rrelu_with_noise",
    "smooth_l1_loss_backward",
    "softplus_backward",
    // pooling, padding, sampling
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool2d_backward",
    "avg_pool2d",
    "avg_pool2d_backward",
    "avg_pool3d",
    "avg_pool3d_backward",
    "max_pool2d_with_indices",
    "max_pool2d_with_indices_backward",
    "max_pool3d_with_indices",
    "max_pool3d_with_indices_backward",
    "reflection_pad1d",
    "reflection_pad1d_backward",
    "reflection_pad2d",
    "reflection_pad2d_backward",
    "replication_pad2d",
    "replication_pad2d_backward",
    "grid_sampler_2d",
    "grid_sampler_2d_backward",
    "upsample_linear1d",
    "upsample_linear1d_backward",
    "channel_shuffle",
    // lists of tensors
    "_amp_update_scale_",
    "_foreach_abs",
    "_foreach_add",
    "_foreach_add_",
    "_foreach_addcdiv",
    "_foreach_addcdiv_",
    "_foreach_addcmul",
    "_foreach_addcmul_",
    "_foreach_clamp_max_",
    "_foreach_clamp_min_",
    "_foreach_copy_",
    "_foreach_div",
    "_foreach_div_",
    "_foreach_lerp",
    "_foreach_lerp_",
    "_foreach_maximum",
    "_foreach_maximum_",
    "_foreach_mul",
    "_foreach_mul_",
    "_foreach_neg",
    "_foreach_neg_",
    "_foreach_pow",
    "_foreach_reciprocal_",
    "_foreach_sign_",
    "_foreach_sqrt",
    "_foreach_sqrt_",
    "_foreach_sub",
    "_foreach_sub_",
    "_foreach_zero_",
    "_fused_adam_",
    "_fused_adamw_",
    "_fused_sgd_",
    // filling and copying
    "cauchy_",
    "complex",
    "exponential_",
    "geometric_",
    "log_normal_",
    "normal",
    "poisson",
    "polar",
    "trace",
    "tril",
    "tril_indices",
    "triu",
    "triu_indices",
    "_cdist_forward",
    "_pdist_forward",
    "linalg_cross",
};

}  // namespace

std::span<const RuleRow> module_rules() {
  static const auto* const rows = [] {
    auto* const all = new std::vector<RuleRow>(std::begin(kModuleRules), std::end(kModuleRules));
    for (const char* const name : kNothingInside) all->push_back({name, nothing});
    return all;
  }();
  return *rows;
}

}  // namespace plimsoll::simulated
