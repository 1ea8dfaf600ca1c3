// Layer, group and batch normalization.
#include <algorithm>
#include <bit>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "chips/chip.h"
#include "rules/convolution_workspaces.h"
#include "rules/reduction.h"
#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

// Makes the first result contiguous. The CUDA kernels of layer norm and RMS norm return a
// contiguous tensor, whatever the strides of their operands are. The Meta kernels keep strides.
void make_contiguous(Call& call) {
  const Tensor like = call.shape_of_result(0);
  if (like.defined() && !like.is_contiguous()) call.set_shape(0, meta_contiguous(like));
}

// Simulates native_layer_norm(input, shape, weight, bias, eps) and _fused_rms_norm(input, shape,
// weight, eps).
void layer_norm(Call& call) {
  make_contiguous(call);
  copy_unless_contiguous(call, call.tensor(0));
  call.allocate_all();
}

// Removes the results that the call does not request. The last argument of a backward operation is
// a mask of the requested results.
void drop_unwanted(Call& call) {
  const auto mask = call.argument(call.argument_count() - 1).toBoolList();
  for (std::size_t i = 0; i < mask.size(); ++i) {
    if (!mask[i]) call.set_result(i, Tensor());
  }
}

// The backward kernel of layer norm or RMS norm sums the gradients of the weight and the bias over
// the rows. If there are many short rows, several thread blocks share the rows, and each writes a
// partial sum for its columns. This function returns the number of these blocks per column. It
// returns 0 if there are few rows or if the rows are long: then one block sums all rows of a
// column.
std::int64_t blocks_of_rows(const Call& call, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kColumns = 32;
  constexpr std::int64_t kRows = 32;
  constexpr std::int64_t kMostBlocks = 32768;
  if (rows <= 65536 || columns / kColumns >= call.properties().multiprocessors / 2) return 0;
  const std::int64_t across = (columns + kColumns - 1) / kColumns;
  return std::min(kMostBlocks / across, (rows + kRows - 1) / kRows);
}

// Simulates native_layer_norm_backward(grad_out, input, shape, mean, rstd, weight, bias, mask) or
// _fused_rms_norm_backward(grad_out, input, shape, rstd, weight, mask). `parameters` has the
// indices of the results for the weight and the bias.
void row_norm_backward(Call& call, std::initializer_list<std::size_t> parameters) {
  drop_unwanted(call);
  make_contiguous(call);
  const Tensor input = call.tensor(1);
  copy_unless_contiguous(call, input);
  const std::int64_t columns = c10::multiply_integers(call.argument(2).toIntVector());
  const std::int64_t rows = input.numel() / std::max<std::int64_t>(columns, 1);
  const std::int64_t blocks = blocks_of_rows(call, rows, columns);
  if (blocks == 0) {
    call.allocate_all();
    copy_unless_contiguous(call, call.tensor(0));
    return;
  }
  // The kernel first allocates each parameter's gradient. Later it sums the blocks' partial
  // gradients into a new tensor, which replaces the first one.
  const auto mask = call.argument(call.argument_count() - 1).toBoolList();
  call.allocate(0);
  const Tensor partial = meta_empty({blocks, columns}, input.scalar_type());
  const std::size_t row = static_cast<std::size_t>(columns) * input.itemsize();
  // The results that the kernel replaces. Each pair has the index of the result, and the number
  // under which `call` keeps the tensor that the kernel allocates first.
  std::vector<std::pair<std::size_t, std::size_t>> replaced;
  for (const std::size_t result : parameters) {
    if (mask[result]) replaced.emplace_back(result, call.temporary(row));
  }
  copy_unless_contiguous(call, call.tensor(0));
  for (std::size_t i = 0; i < replaced.size(); ++i) call.temporary(bytes_of(partial));
  for (const auto& [result, first] : replaced) {
    allocate_sum(call, result, partial, 0);
    call.release(first);
  }
}

void layer_norm_backward(Call& call) { row_norm_backward(call, {1, 2}); }
void rms_norm_backward(Call& call) { row_norm_backward(call, {1}); }

// Simulates native_group_norm(input, weight, bias, N, C, HxW, group, eps).
void group_norm(Call& call) {
  call.allocate_all();
  const bool is_one_value = call.argument(5).toInt() == 1;
  if (is_one_value || (!call.tensor(1).defined() && !call.tensor(2).defined())) return;
  const auto channels =
      static_cast<std::size_t>(call.argument(3).toInt() * call.argument(4).toInt());
  call.temporary(channels * kFloat);
  call.temporary(channels * kFloat);
}

// Simulates native_group_norm_backward(grad_out, input, mean, rstd, weight, N, C, HxW, group,
// mask).
void group_norm_backward(Call& call) {
  drop_unwanted(call);
  const auto batch = static_cast<std::size_t>(call.argument(5).toInt());
  const std::size_t per_channel =
      batch * static_cast<std::size_t>(call.argument(6).toInt()) * kFloat;
  const std::size_t per_group = batch * static_cast<std::size_t>(call.argument(8).toInt()) * kFloat;
  call.allocate_all();
  const bool is_one_value = call.argument(7).toInt() == 1;
  if (is_one_value) {
    if (!call.argument(9).toBoolList()[0]) return;
    call.temporary(per_group);
    call.temporary(per_group);
    return;
  }
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

// The launch shape of a channels-last reduction (Normalization.cuh).
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

// Simulates native_batch_norm(input, weight, bias, mean, var, training, momentum, eps).
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

// --- batch normalization through cuDNN -----------------------------------------------------------

// cuDNN's kernels for images in channels_last reduce tiles of channels and positions. For each tile
// the kernels keep two sums per channel. The formulas in `normalization_workspace` give all
// workspaces of a float32 network that was recorded on an H200 with cuDNN 9. Its layers have 8,151
// to 468,369 positions and 28 to 420 channels.
constexpr std::size_t kTileChannels = 64;
constexpr std::size_t kTileSums = kTileChannels * 2 * kFloat;

bool is_persistent(const Tensor& input) {
  const auto format = input.suggest_memory_format();
  return format == at::MemoryFormat::ChannelsLast || format == at::MemoryFormat::ChannelsLast3d;
}

// The report prints this text as an assumption. prediction/assumed.py has the same text.
constexpr std::string_view kOnlySingle =
    "plimsoll estimates its workspace from that of float32, as other types were not measured";

void normalization_workspace(Call& call, const Tensor& input, bool is_forward) {
  if (input.size(1) == 0 || input.numel() == 0) return;
  const auto channels = static_cast<std::size_t>(input.size(1));
  const std::size_t positions = elements(input) / channels;
  const auto tiles = [](std::size_t count, std::size_t each) { return (count + each - 1) / each; };
  const std::size_t column = is_forward ? tiles(positions, 64) * (kTileSums + sizeof(int))
                                        : tiles(positions, 96) * kTileSums;
  const std::size_t fixed = is_forward ? 1072 : 1056;
  const std::size_t bytes = fixed + tiles(channels, kTileChannels) * (column + sizeof(int));
  const bool is_measured_chip = chip_of(call.properties()).measured != 0;
  if (is_measured_chip && input.scalar_type() == at::kFloat) return scratch(call, bytes);
  call.assume(is_measured_chip ? kOnlySingle : kOtherChip);
  UncertainMemory memory;
  memory.bytes = memory.most = bytes;
  call.take_uncertain(memory);
}

// Simulates cudnn_batch_norm(input, weight, bias, mean, var, training, momentum, eps).
void cudnn_batch_norm(Call& call) {
  call.allocate_all();
  const Tensor input = call.tensor(0);
  if (call.argument(5).toBool() && is_persistent(input)) {
    normalization_workspace(call, input, true);
  }
}

// Simulates cudnn_batch_norm_backward(input, grad_output, weight, ...). The kernel needs the
// gradient in the input's layout (aten/src/ATen/native/cudnn/BatchNorm.cpp).
void cudnn_batch_norm_backward(Call& call) {
  const Tensor input = call.tensor(0);
  const Tensor gradient = call.tensor(1);
  if (!gradient.is_contiguous(input.suggest_memory_format())) {
    call.temporary(bytes_of(gradient));
    call.note_copy(gradient);
  }
  call.allocate_all();
  if (is_persistent(input)) normalization_workspace(call, input, false);
}

// --- batch normalization over several processes --------------------------------------------------

// PyTorch has no Meta kernels for these operations, so their rules set the results' shapes.

// Returns a shape with one number per channel, in at least single precision.
Tensor channels(const Tensor& input) {
  const bool is_half = input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16;
  return meta_empty({input.size(1)}, is_half ? at::kFloat : input.scalar_type());
}

// Simulates batch_norm_gather_stats_with_counts(input, ...). The results are one mean and one
// inverse deviation per channel.
void gathered_statistics(Call& call) {
  for (const std::size_t result : {0, 1}) {
    call.set_shape(result, channels(call.tensor(0)));
    call.allocate(result);
  }
}

// Returns whether the operations of this section use their channels-last kernels for the input
// (batch_norm_use_channels_last_kernels in aten/src/ATen/native/cuda/Normalization.cu).
bool reads_channels_last(const Tensor& input) {
  return input.is_contiguous(at::MemoryFormat::ChannelsLast) ||
         input.is_contiguous(at::MemoryFormat::ChannelsLast3d) ||
         (input.is_contiguous() && input.stride(1) == 1);
}

// Takes memory for a copy if the dimensions behind the channels cannot be merged in a view.
void copy_unless_merged(Call& call, const Tensor& tensor) {
  std::int64_t next = tensor.dim() - 1;
  bool is_merged = true;
  for (std::int64_t i = tensor.dim() - 2; i >= 2; --i) {
    if (tensor.size(i) == 1) continue;
    is_merged = is_merged && (tensor.size(next) == 1 ||
                              tensor.stride(i) == tensor.size(next) * tensor.stride(next));
    next = i;
  }
  if (!is_merged) call.temporary(bytes_of(tensor));
}

// Simulates batch_norm_stats(input, eps). Its results have the same shapes as those of
// batch_norm_gather_stats_with_counts.
void channel_statistics(Call& call) {
  const Tensor input = call.tensor(0);
  const bool stages = reads_channels_last(input);
  if (!stages) copy_unless_merged(call, input);
  gathered_statistics(call);
  if (stages) stage(call, input, 4);
}

// Simulates batch_norm_backward_reduce(grad, input, mean, invstd, weight, of_input, of_weight,
// of_bias). The channels-last kernel computes all results, even those that the call does not
// request.
void channel_gradients(Call& call) {
  const Tensor input = call.tensor(1);
  const Tensor mean = meta_contiguous(call.tensor(2));
  const Tensor weight = call.tensor(4);
  const bool stages = reads_channels_last(call.tensor(0)) && reads_channels_last(input);
  if (!stages) {
    copy_unless_merged(call, input);
    copy_unless_merged(call, call.tensor(0));
  }
  const Tensor none = stages ? meta_empty({0}, mean.scalar_type()) : Tensor();
  const Tensor parameter = weight.defined() ? meta_contiguous(weight) : none;
  for (const std::size_t result : {0, 1, 2, 3}) {
    const bool is_wanted = stages || call.argument(std::max<std::size_t>(5, 4 + result)).toBool();
    call.set_shape(result, !is_wanted ? Tensor() : result < 2 ? mean : parameter);
    call.allocate(result);
  }
  if (stages) stage(call, input, 2);
}

const RuleTable kNormalizationRules{
    {"native_layer_norm", layer_norm},
    {"native_layer_norm_backward", layer_norm_backward},
    {"_fused_rms_norm", layer_norm},
    {"_fused_rms_norm_backward", rms_norm_backward},
    {"native_group_norm", group_norm},
    {"native_group_norm_backward", group_norm_backward},
    {"cudnn_batch_norm", cudnn_batch_norm},
    {"cudnn_batch_norm_backward", cudnn_batch_norm_backward},
    {"native_batch_norm", batch_norm},
    {"native_batch_norm_backward", batch_norm_backward},
    {"batch_norm_stats", channel_statistics},
    {"batch_norm_gather_stats_with_counts", gathered_statistics},
    {"batch_norm_backward_reduce", channel_gradients},
};

}  // namespace
}  // namespace plimsoll::simulated
