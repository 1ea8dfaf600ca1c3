#include "values/substitutes.h"

#include <ATen/ops/convolution.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/grid_sampler_2d.h>
#include <ATen/ops/grid_sampler_2d_backward.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "values/host_call.h"
#include "values/recurrent_on_host.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

// Pushes the call's results. Pushes zeros for each result that `results` lacks. GPU kernels return
// such a result only for the backward pass, whose substitute does not read it.
void leave(const Call& call, torch::jit::Stack& stack, const std::vector<Tensor>& results) {
  for (std::size_t i = 0; i < call.results().size(); ++i) {
    const c10::IValue& like = call.results()[i];
    if (!like.isTensor() || !like.toTensor().defined()) {
      stack.push_back(like);
    } else if (i < results.size() && results[i].defined()) {
      stack.emplace_back(results[i]);
    } else {
      stack.emplace_back(at::zeros(like.toTensor().sizes(),
                                   at::TensorOptions().dtype(like.toTensor().scalar_type())));
    }
  }
}

// --- convolution ---------------------------------------------------------------------------------

void convolve(const Call& call, torch::jit::Stack& stack, bool transposed) {
  const Named of(call, take(stack));
  const std::vector<std::int64_t> padding = of["padding"].toIntVector();
  const bool is_depthwise = call.info().plain_name.find("depthwise") != std::string::npos;
  const std::vector<std::int64_t> more = transposed ? of["output_padding"].toIntVector()
                                                    : std::vector<std::int64_t>(padding.size(), 0);
  const Tensor from = of.tensor("self");
  leave(call, stack,
        {at::convolution(from, of.tensor("weight"), of.tensor("bias"), of["stride"].toIntVector(),
                         padding, of["dilation"].toIntVector(), transposed, more,
                         is_depthwise ? from.size(1) : of["groups"].toInt())});
}
void convolution(const Call& call, torch::jit::Stack& stack) { convolve(call, stack, false); }
void transposed_convolution(const Call& call, torch::jit::Stack& stack) {
  convolve(call, stack, true);
}

// --- grids
// -----------------------------------------------------------------------------------------

constexpr std::int64_t kLinear = 0, kZeros = 0;  // the modes of cuDNN's sampler

void sample_grid(const Call& call, torch::jit::Stack& stack) {
  const Named of(call, take(stack));
  leave(call, stack,
        {at::grid_sampler_2d(of.tensor("self"), of.tensor("grid"), kLinear, kZeros,
                             /*align_corners=*/true)});
}

void sample_grid_backward(const Call& call, torch::jit::Stack& stack) {
  const Named of(call, take(stack));
  const auto [input, grid] = at::grid_sampler_2d_backward(
      of.tensor("grad_output"), of.tensor("self"), of.tensor("grid"), kLinear, kZeros,
      /*align_corners=*/true, {true, true});
  leave(call, stack, {input, grid});
}

// --- batch normalization -------------------------------------------------------------------------

void batch_norm(const Call& call, torch::jit::Stack& stack) {
  const Named of(call, take(stack));
  auto [output, mean, deviation] = at::native_batch_norm(
      of.tensor("input"), of.tensor("weight"), of.tensor("bias"), of.tensor("running_mean"),
      of.tensor("running_var"), of["training"].toBool(),
      of["exponential_average_factor"].toDouble(), of["epsilon"].toDouble());
  leave(call, stack, {output, mean, deviation});
}

void batch_norm_backward(const Call& call, torch::jit::Stack& stack) {
  const Named of(call, take(stack));
  auto [input, weight, bias] = at::native_batch_norm_backward(
      of.tensor("grad_output"), of.tensor("input"), of.tensor("weight"), of.tensor("running_mean"),
      of.tensor("running_var"), of.tensor("save_mean"), of.tensor("save_var"), /*train=*/true,
      of["epsilon"].toDouble(), std::array{true, true, true});
  leave(call, stack, {input, weight, bias});
}

// --- attention -----------------------------------------------------------------------------------

// Repeats the heads of keys or values, as grouped-query attention needs.
Tensor for_heads(const Tensor& tensor, const Tensor& query) {
  const std::int64_t times = query.size(1) / tensor.size(1);
  return times == 1 ? tensor : tensor.repeat_interleave(times, 1);
}

Tensor sum_of_heads(const Tensor& gradient, const Tensor& like) {
  const std::int64_t times = gradient.size(1) / like.size(1);
  if (times == 1) return gradient;
  return gradient.unflatten(1, {like.size(1), times}).sum(2);
}

class Attention {
 public:
  explicit Attention(const Named& of) {
    TORCH_CHECK(of["dropout_p"].toDouble() == 0, "what is dropped is known to the GPU alone");
    query = widened(of.tensor("query"));
    key = for_heads(widened(of.tensor("key")), query);
    value = for_heads(widened(of.tensor("value")), query);
    const c10::IValue& given = of["scale"];
    scale = given.isNone() ? 1 / std::sqrt(static_cast<double>(query.size(-1))) : given.toDouble();
    scores = query.matmul(key.transpose(-2, -1)).mul(scale);
    if (const Tensor bias = of.tensor("attn_bias"); bias.defined())
      scores = scores.add(widened(bias));
    if (of["is_causal"].toBool()) {
      const Tensor later =
          at::ones({query.size(-2), key.size(-2)}, at::TensorOptions().dtype(at::kBool)).triu(1);
      scores = scores.masked_fill(later, -std::numeric_limits<double>::infinity());
    }
    chances = scores.softmax(-1);
  }

  Tensor query, key, value, scores, chances;
  double scale = 1;
};

void attention(const Call& call, torch::jit::Stack& stack) {
  const Named of(call, take(stack));
  const Attention made(of);
  const at::ScalarType type = of.tensor("query").scalar_type();
  const Tensor output = made.chances.matmul(made.value).to(type);
  Tensor sums;  // has padding rows: kernels allocate more than they need
  if (const c10::IValue& like = call.results()[1]; like.isTensor() && like.toTensor().defined()) {
    const Tensor found = made.scores.logsumexp(-1);
    const Tensor to = like.toTensor();
    if (to.numel() != 0) {
      sums = at::zeros(to.sizes(), at::TensorOptions().dtype(to.scalar_type()));
      sums.narrow(2, 0, found.size(2)).copy_(to.dim() == 4 ? found.unsqueeze(-1) : found);
    }
  }
  leave(call, stack, {output, sums});
}

void attention_backward(const Call& call, torch::jit::Stack& stack) {
  const Named of(call, take(stack));
  const Attention made(of);
  Tensor gradient = of.tensor("grad_out");
  if (!gradient.defined()) gradient = of.tensor("grad_out_");
  const at::ScalarType type = gradient.scalar_type();
  gradient = widened(gradient);
  const Tensor of_chances = gradient.matmul(made.value.transpose(-2, -1));
  const Tensor of_scores =
      of_chances.sub(of_chances.mul(made.chances).sum(-1, /*keepdim=*/true)).mul(made.chances);
  const Tensor of_query = of_scores.matmul(made.key).mul(made.scale);
  const Tensor of_key = of_scores.transpose(-2, -1).matmul(made.query).mul(made.scale);
  const Tensor of_value = made.chances.transpose(-2, -1).matmul(gradient);
  std::vector<Tensor> results{of_query.to(type), sum_of_heads(of_key, of.tensor("key")).to(type),
                              sum_of_heads(of_value, of.tensor("value")).to(type)};
  if (const Tensor bias = of.tensor("attn_bias"); bias.defined()) {
    results.push_back(of_scores.sum_to_size(bias.sizes()).to(type));
  }
  leave(call, stack, results);
}

// Computes _embedding_bag on the host, and adds the result `offset2bag`: the bag of each index. GPU
// kernels always return it, because the backward pass reads it. The host's kernel returns it only
// if the forward pass needs it.
void embedding_bag(const Call& call, torch::jit::Stack& stack) {
  const Named of(call, stack);
  const Tensor offsets = of.tensor("offsets");
  const std::int64_t count = of.tensor("indices").numel();
  call.op().callBoxed(&stack);
  const std::int64_t bags = offsets.numel() - (of["include_last_offset"].toBool() ? 1 : 0);
  if (bags < 1) return;
  const Tensor begins = offsets.slice(0, 1, bags);
  const Tensor steps = at::zeros({count + 1}, offsets.options())
                           .index_add_(0, begins, at::ones(begins.sizes(), offsets.options()));
  stack.at(1) = steps.cumsum(0, offsets.scalar_type()).narrow(0, 0, count);
}

// --- operations that succeed on a GPU and fail on the host ---------------------------------------

// Returns what a GPU computes when it divides integers by zero: all bits are set. If a 64-bit
// dividend fits into an unsigned 32-bit number, only the lower 32 bits are set (measured on an
// H100, PyTorch 2.11).
Tensor all_bits(const Tensor& divided) {
  if (divided.scalar_type() == at::kByte) return at::full_like(divided, 0xFF);
  const Tensor ones = at::full_like(divided, -1);
  if (divided.scalar_type() != at::kLong) return ones;
  constexpr std::int64_t kLow = 0xFFFFFFFF;
  return ones.masked_fill(divided.ge(0).logical_and(divided.le(kLow)), kLow);
}

// Divides integers. Division by zero is checked first, because it would crash the host's process.
void divide(const Call& call, torch::jit::Stack& stack) {
  const Named of(call, stack);
  const Tensor divided = of.tensor("self").clone();  // a copy, because the result may overwrite it
  const Tensor divisor = of.tensor("other");
  const std::string_view name = call.info().plain_name;
  const bool is_division = name.starts_with("div");
  const bool rounds = !is_division || call.op().schema().overload_name().ends_with("_mode");
  const auto is_integer = [](const Tensor& tensor) {
    return tensor.defined() && at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false);
  };
  const Tensor is_zero = is_integer(divisor) ? divisor.eq(0) : Tensor();
  if (!rounds || !is_integer(divided) || !is_zero.defined() || !is_zero.any().item<bool>()) {
    return call.op().callBoxed(&stack);
  }
  stack.at(1) = divisor.masked_fill(is_zero, 1);
  call.op().callBoxed(&stack);
  const Tensor result = stack.at(0).toTensor();
  Tensor bits = all_bits(divided.to(result.scalar_type()));
  const bool is_floor = name.starts_with("floor_divide") ||
                        (is_division && of["rounding_mode"].toStringView() == "floor");
  if (is_floor && divided.scalar_type() != at::kByte) bits = bits.sub(divided.lt(0).to(bits));
  result.copy_(at::where(is_zero, bits, result));
}

// Computes singular values. For a matrix that is not finite, cuSOLVER returns NaN, while the host
// raises an error.
void singular_values(const Call& call, torch::jit::Stack& stack) {
  const Tensor matrices = stack.at(0).toTensor();
  if (matrices.isfinite().all().item<bool>()) return call.op().callBoxed(&stack);
  stack.clear();
  std::vector<Tensor> results;
  for (const c10::IValue& like : call.results()) {
    const Tensor tensor = like.toTensor();
    results.push_back(at::full(tensor.sizes(), std::numeric_limits<double>::quiet_NaN(),
                               at::TensorOptions().dtype(tensor.scalar_type())));
  }
  leave(call, stack, results);
}

struct Row {
  const char* name;
  Substitute function;
};

constexpr Row kRows[] = {
    {"cudnn_convolution", convolution},
    {"cudnn_convolution_transpose", transposed_convolution},
    {"_conv_depthwise2d", convolution},
    {"conv_depthwise3d", convolution},
    {"cudnn_grid_sampler", sample_grid},
    {"cudnn_grid_sampler_backward", sample_grid_backward},
    {"cudnn_batch_norm", batch_norm},
    {"_embedding_bag", embedding_bag},
    {"cudnn_batch_norm_backward", batch_norm_backward},
    {"_scaled_dot_product_flash_attention", attention},
    {"_scaled_dot_product_flash_attention_backward", attention_backward},
    {"_scaled_dot_product_efficient_attention", attention},
    {"_scaled_dot_product_efficient_attention_backward", attention_backward},
    {"_scaled_dot_product_cudnn_attention", attention},
    {"_scaled_dot_product_cudnn_attention_backward", attention_backward},
    {"_cudnn_rnn", run_recurrent},
    {"_cudnn_rnn_backward", run_recurrent_back},
    {"_cudnn_rnn_flatten_weight", flatten_recurrent_weights},
    {"_thnn_fused_lstm_cell", run_lstm_cell},
    {"_thnn_fused_lstm_cell_backward_impl", run_lstm_cell_back},
    {"_thnn_fused_gru_cell", run_gru_cell},
    {"_thnn_fused_gru_cell_backward", run_gru_cell_back},
    {"div", divide},
    {"div_", divide},
    {"floor_divide", divide},
    {"floor_divide_", divide},
    {"remainder", divide},
    {"remainder_", divide},
    {"fmod", divide},
    {"fmod_", divide},
    {"_linalg_svd", singular_values},
};

}  // namespace

Substitute find_substitute(const Call& call) {
  const std::string_view name = call.info().plain_name;
  for (const Row& row : kRows) {
    if (name == row.name) return row.function;
  }
  return nullptr;
}

}  // namespace plimsoll::simulated
