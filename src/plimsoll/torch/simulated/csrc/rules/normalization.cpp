// Layer, group and batch normalization.
#include <algorithm>
#include <bit>

#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

// Simulates native_layer_norm(input, shape, weight, bias, eps) and _fused_rms_norm(input, shape,
// weight, eps).
void layer_norm(Call& call) {
  copy_unless_contiguous(call, call.tensor(0));
  call.allocate_all();
}

// Removes the results that the call does not ask for. The last argument of a backward operation is
// the mask that says so.
void drop_unwanted(Call& call) {
  const auto mask = call.argument(call.argument_count() - 1).toBoolList();
  for (std::size_t i = 0; i < mask.size(); ++i) {
    if (!mask[i]) call.set_result(i, Tensor());
  }
}

// Arguments: native_layer_norm_backward(grad_out, input, shape, mean, rstd, weight, bias, mask).
void layer_norm_backward(Call& call) {
  drop_unwanted(call);
  copy_unless_contiguous(call, call.tensor(1));
  call.allocate_all();
  copy_unless_contiguous(call, call.tensor(0));
}

// Simulates _fused_rms_norm_backward(grad_out, input, shape, rstd, weight, mask).
void rms_norm_backward(Call& call) {
  drop_unwanted(call);
  copy_unless_contiguous(call, call.tensor(1));
  call.allocate_all();
  copy_unless_contiguous(call, call.tensor(0));
}

// Simulates native_group_norm(input, weight, bias, N, C, HxW, group, eps).
void group_norm(Call& call) {
  call.allocate_all();
  if (!call.tensor(1).defined() && !call.tensor(2).defined()) return;
  const auto channels =
      static_cast<std::size_t>(call.argument(3).toInt() * call.argument(4).toInt());
  call.temporary(channels * kFloat);
  call.temporary(channels * kFloat);
}

// Arguments: native_group_norm_backward(grad_out, input, mean, rstd, weight, N, C, HxW, group,
// mask).
void group_norm_backward(Call& call) {
  drop_unwanted(call);
  const auto batch = static_cast<std::size_t>(call.argument(5).toInt());
  const std::size_t per_channel =
      batch * static_cast<std::size_t>(call.argument(6).toInt()) * kFloat;
  const std::size_t per_group = batch * static_cast<std::size_t>(call.argument(8).toInt()) * kFloat;
  call.allocate_all();
  call.temporary(per_channel);
  call.temporary(per_channel);
  const std::size_t second = call.temporary(per_group);
  const std::size_t third = call.temporary(per_group);
  if (call.tensor(4).defined()) call.temporary(per_channel);
  call.release(third);
  call.release(second);
}

bool has_channels_last_kernel(const Tensor& input) {
  return input.dim() == 2 ||
         (input.dim() == 4 && input.is_contiguous(at::MemoryFormat::ChannelsLast) &&
          !input.is_contiguous()) ||
         (input.dim() == 5 && input.is_contiguous(at::MemoryFormat::ChannelsLast3d) &&
          !input.is_contiguous());
}

// How a channels-last reduction is launched (Normalization.cuh).
struct ChannelsLastLaunch {
  explicit ChannelsLastLaunch(const Tensor& input)
      : channels(static_cast<std::size_t>(input.size(1))) {
    constexpr std::size_t kMostThreads = 512;
    constexpr std::size_t kPerThread = 16;
    const std::size_t rows = elements(input) / std::max<std::size_t>(channels, 1);
    const std::size_t width = std::bit_floor(std::max<std::size_t>(channels, 1));
    std::size_t across = std::min<std::size_t>(width, 32);
    const std::size_t down = std::max<std::size_t>(
        1, std::min(std::bit_floor((rows + kPerThread - 1) / kPerThread), kMostThreads / across));
    if (across * down != kMostThreads) across = std::min(width, kMostThreads / down);
    columns = (channels + across - 1) / across;
    blocks = std::min<std::size_t>((rows + down * kPerThread - 1) / (down * kPerThread), 128);
    if (blocks < 8) blocks = 1;
  }
  std::size_t channels;
  std::size_t columns = 1;
  std::size_t blocks = 1;
};

void stage(Call& call, const Tensor& input, std::size_t values) {
  const ChannelsLastLaunch launch(input);
  if (launch.blocks == 1) return;
  const std::size_t staging = call.temporary(values * launch.channels * launch.blocks * kFloat);
  const std::size_t semaphores = call.temporary(launch.columns * sizeof(int));
  call.release(semaphores);
  call.release(staging);
}

// Arguments: native_batch_norm(input, weight, bias, mean, var, training, momentum, eps).
void batch_norm(Call& call) {
  call.allocate_all();
  const Tensor input = call.tensor(0);
  if (call.argument(5).isBool() && call.argument(5).toBool() && has_channels_last_kernel(input)) {
    stage(call, input, 4);
  }
}

// Simulates native_batch_norm_backward(grad_out, input, ...).
void batch_norm_backward(Call& call) {
  drop_unwanted(call);
  const Tensor input = call.tensor(1);
  if (!has_channels_last_kernel(input)) {
    call.allocate_all();
    return;
  }
  const std::size_t channels = static_cast<std::size_t>(input.size(1)) * kFloat;
  const std::size_t first = call.temporary(channels);
  const std::size_t second = call.temporary(channels);
  call.allocate(1);
  call.allocate(2);
  stage(call, input, 2);
  call.allocate(0);
  call.release(second);
  call.release(first);
}

const RuleTable kNormalizationRules{
    {"native_layer_norm", layer_norm}, {"native_layer_norm_backward", layer_norm_backward},
    {"_fused_rms_norm", layer_norm},   {"_fused_rms_norm_backward", rms_norm_backward},
    {"native_group_norm", group_norm}, {"native_group_norm_backward", group_norm_backward},
    {"native_batch_norm", batch_norm}, {"native_batch_norm_backward", batch_norm_backward},
};

}  // namespace
}  // namespace plimsoll::simulated
