// Convolutions through cuDNN, whose workspaces follow no rule that it states.
//
// A table of 90,000 measured convolutions (cuDNN 9.19, compute capability 9.0) stands for one. The
// nearest entry says which of the operands cuDNN copies into another layout, whatever their size,
// and what it takes besides, which grows with the weight.
#include <ATen/Context.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>

#include "rules/reduction.h"
#include "rules/rules.h"
#include "values/description.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

// Back: transposed.
enum Kind : std::int32_t { kImages, kImagesBack, kLines, kVolumes, kVolumesBack };

bool is_transposed(std::int32_t kind) { return kind == kImagesBack || kind == kVolumesBack; }

// A row of data/cudnn_workspaces.csv.
struct Measured {
  std::int32_t kind, type, channels_last, batch, channels, side, out_channels, kernel, stride,
      padding, groups, dilation;
  std::int64_t forward, input_gradient, weight_gradient;
};

constexpr Measured kMeasured[] = {
#include "cudnn_workspaces.inc"
};

std::int64_t measured_bytes(const Measured& entry, Pass pass) {
  return pass == Pass::forward          ? entry.forward
         : pass == Pass::input_gradient ? entry.input_gradient
                                        : entry.weight_gradient;
}

// Bytes of input, weight and output.
using Operands = std::array<double, 3>;

// cuDNN pads channels that do not fill its vectors.
Operands padded(const Operands& bytes, double channels, double out_channels, double step) {
  const double in = std::ceil(channels / step) * step / channels;
  const double out = std::ceil(out_channels / step) * step / out_channels;
  return {bytes[0] * in, bytes[1] * in * out, bytes[2] * out};
}

struct Convolution {
  std::int32_t kind = 0, type = 0;
  bool channels_last = false;
  double batch = 1, channels = 1, side = 1, out_channels = 1;
  std::int64_t kernel = 1, stride = 1, groups = 1, dilation = 1;
  Operands bytes{};
};

Operands operands_of(const Measured& entry) {
  const double element = entry.type == 0 ? 4 : 2;
  const double side = entry.side;
  const double reach = entry.dilation * (entry.kernel - 1) + 1;
  const double out_side = is_transposed(entry.kind)
                              ? (side - 1) * entry.stride - 2 * entry.padding + entry.kernel
                              : std::floor((side + 2 * entry.padding - reach) / entry.stride) + 1;
  const double dimensions = entry.kind == kLines ? 1 : entry.kind >= kVolumes ? 3 : 2;
  return {element * entry.batch * entry.channels * std::pow(side, dimensions),
          element * entry.channels * entry.out_channels / entry.groups *
              std::pow(entry.kernel, dimensions),
          element * entry.batch * entry.out_channels * std::pow(out_side, dimensions)};
}

double ratio(double first, double second) { return std::abs(std::log2(first / second)); }

// Only convolutions that are alike in these are compared.
bool are_of_one_sort(const Convolution& call, const Measured& entry) {
  return call.kind == entry.kind && call.type == entry.type &&
         call.channels_last == (entry.channels_last != 0);
}

double distance(const Convolution& call, const Measured& entry) {
  const auto group_class = [](double groups, double channels) {
    return groups == 1 ? 0 : groups == channels ? 1 : 2;
  };
  const double vector = call.type == 0 ? 4 : 8;  // 16 bytes
  const auto is_aligned = [vector](double channels) { return std::fmod(channels, vector) == 0; };
  double total = ratio(call.batch, entry.batch) + ratio(call.channels, entry.channels) +
                 2 * ratio(call.side, entry.side) + ratio(call.out_channels, entry.out_channels);
  if (call.kernel != entry.kernel) {
    total += 2 + ratio(static_cast<double>(call.kernel), entry.kernel);
    if (call.kernel == 1 || entry.kernel == 1) total += 20;
  }
  if (call.stride != entry.stride) total += 3;
  if ((call.stride == call.kernel) != (entry.stride == entry.kernel)) total += 6;
  if (call.dilation != entry.dilation) total += 1;
  if (group_class(static_cast<double>(call.groups), call.channels) !=
      group_class(entry.groups, entry.channels)) {
    total += 40;
  }
  if (is_aligned(call.channels) != is_aligned(entry.channels)) total += 10;
  if (is_aligned(call.out_channels) != is_aligned(entry.out_channels)) total += 10;
  return total;
}

constexpr std::size_t kNeighbours = 8;

struct Neighbours {
  std::array<const Measured*, kNeighbours> entries{};  // the nearest first
  bool is_measured = false;                            // the first is this very convolution
};

const Neighbours& neighbours_of(const Convolution& call) {
  using Key = std::tuple<std::int32_t, std::int32_t, bool, double, double, double, double,
                         std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
  static std::mutex mutex;
  static auto* const known = new std::map<Key, Neighbours>;
  const Key key{call.kind,     call.type,   call.channels_last, call.batch,
                call.channels, call.side,   call.out_channels,  call.kernel,
                call.stride,   call.groups, call.dilation};
  const std::lock_guard lock(mutex);
  const auto [place, is_new] = known->try_emplace(key);
  Neighbours& found = place->second;
  if (is_new) {
    std::array<std::pair<double, const Measured*>, kNeighbours> nearest;
    nearest.fill({std::numeric_limits<double>::infinity(), kMeasured});
    for (const Measured& entry : kMeasured) {
      if (!are_of_one_sort(call, entry)) continue;
      std::pair candidate{distance(call, entry), &entry};
      for (auto& kept : nearest) {
        if (candidate.first < kept.first) std::swap(candidate, kept);
      }
    }
    // The nearest is repeated where there are fewer.
    std::ranges::transform(nearest, found.entries.begin(), [&](const auto& each) {
      return std::isinf(each.first) ? nearest[0].second : each.second;
    });
    found.is_measured = nearest[0].first == 0;
  }
  return found;
}

// The workspace if cuDNN takes the kernel that it took for the measured convolution.
std::size_t workspace_like(const Measured& entry, const Convolution& call, Pass pass) {
  const auto bytes = static_cast<double>(measured_bytes(entry, pass));
  constexpr double kSmall = 4096;
  if (bytes < kSmall) return static_cast<std::size_t>(bytes);
  // The largest set of operands, padded or not, that the entry's workspace has room for.
  const Operands there = operands_of(entry);
  double best_bytes = 0;
  double here = 0;
  for (const double step : {1.0, 4.0, 8.0}) {
    const Operands old_bytes = padded(there, entry.channels, entry.out_channels, step);
    const Operands new_bytes = padded(call.bytes, call.channels, call.out_channels, step);
    for (int set = 1; set < 8; ++set) {
      double old_sum = 0;
      double new_sum = 0;
      for (std::size_t i = 0; i < 3; ++i) {
        if ((set >> i & 1) == 0) continue;
        old_sum += old_bytes[i];
        new_sum += new_bytes[i];
      }
      if (old_sum <= bytes * 1.0001 + 64 && old_sum > best_bytes) {
        best_bytes = old_sum;
        here = new_sum;
      }
    }
  }
  const double rest = std::max(0.0, bytes - best_bytes);
  const double growth = rest < kSmall ? 1 : std::clamp(call.bytes[1] / there[1], 0.25, 4.0);
  return static_cast<std::size_t>(here + rest * growth);
}

// The nearest entry decides; for the ends of a range, those around it.
std::size_t workspace(const Convolution& call, Pass pass) {
  const Neighbours& found = neighbours_of(call);
  std::size_t bytes = workspace_like(*found.entries[0], call, pass);
  if (found.is_measured || unknown() == Unknown::balanced) return bytes;
  for (const Measured* const entry : found.entries) {
    const std::size_t other = workspace_like(*entry, call, pass);
    bytes = unknown() == Unknown::most ? std::max(bytes, other) : std::min(bytes, other);
  }
  return bytes;
}

double storage(const Tensor& tensor) {
  return static_cast<double>(tensor.numel()) * static_cast<double>(tensor.itemsize());
}

bool wants_channels_last(const Tensor& input, const Tensor& weight) {
  const auto is_last = [](const Tensor& tensor) {
    const auto format = tensor.suggest_memory_format();
    return format == at::MemoryFormat::ChannelsLast || format == at::MemoryFormat::ChannelsLast3d;
  };
  return input.scalar_type() != at::kDouble && (is_last(input) || is_last(weight));
}

at::MemoryFormat format_of(const Tensor& input, const Tensor& weight) {
  if (!wants_channels_last(input, weight)) return at::MemoryFormat::Contiguous;
  return input.dim() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
}

Convolution describe(const Tensor& input, const Tensor& weight, const Tensor& output,
                     at::IntArrayRef stride, at::IntArrayRef dilation, std::int64_t groups,
                     bool transposed) {
  Convolution call;
  const bool is_line = input.dim() == 4 && (input.size(2) == 1 || weight.size(2) == 1) &&
                       weight.size(-1) != weight.size(2);
  const bool is_volume = input.dim() == 5;
  call.kind = is_line ? kLines : (is_volume ? kVolumes : kImages) + (transposed ? 1 : 0);
  call.type = input.scalar_type() == at::kBFloat16 ? 1 : input.scalar_type() == at::kHalf ? 2 : 0;
  call.channels_last = call.kind != kLines && wants_channels_last(input, weight);
  call.batch = static_cast<double>(input.size(0));
  call.channels = static_cast<double>(input.size(1));
  call.out_channels = static_cast<double>(output.size(1));
  double area = 1;
  for (std::int64_t i = 2; i < input.dim(); ++i) area *= static_cast<double>(input.size(i));
  call.side = std::max(1.0, is_line ? area : is_volume ? std::cbrt(area) : std::sqrt(area));
  call.kernel = weight.size(-1);
  call.stride = stride.empty() ? 1 : stride.back();
  call.dilation = dilation.empty() ? 1 : dilation.back();
  call.groups = groups;
  call.bytes = {storage(input), storage(weight), storage(output)};
  return call;
}

void take(Call& call, std::size_t bytes) {
  if (bytes != 0) call.release(call.temporary(bytes));
}

double positions(const Tensor& image) {
  return image.size(1) == 0
             ? 0
             : static_cast<double>(image.numel()) / static_cast<double>(image.size(1));
}

// `output` is the output's gradient in a backward pass.
void note_work(Call& call, const Tensor& input, const Tensor& weight, const Tensor& output,
               std::int64_t groups, bool transposed, Pass pass) {
  const Tensor& wide = transposed ? output : input;  // of the plain convolution that this undoes
  const Tensor& narrow = transposed ? input : output;
  ConvolutionWork work;
  work.inputs = positions(wide);
  work.outputs = positions(narrow);
  work.channels = static_cast<double>(wide.size(1));
  work.out_channels = static_cast<double>(narrow.size(1));
  work.taps = static_cast<double>(weight.numel()) /
              std::max(1.0, static_cast<double>(weight.size(0) * weight.size(1)));
  work.groups = static_cast<double>(std::max<std::int64_t>(1, groups));
  work.type = weight.scalar_type();
  work.allows_tf32 = at::globalContext().allowTF32CuDNN();
  work.channels_last = wants_channels_last(input, weight);
  if (work.inputs == 0 || work.outputs == 0) return;
  if (transposed && pass != Pass::weight_gradient) {
    pass = pass == Pass::forward ? Pass::input_gradient : Pass::forward;
  }
  work.pass = pass;
  call.use(Library::stacks);
  call.note_multiplication(work);
}

void note_source(Call& call) {
  call.assume("its workspaces are those of the nearest convolution measured on an H200");
}

// The places of an operation's numbers among its arguments.
struct Places {
  std::size_t padding, stride, dilation;
  std::size_t groups = 0;          // 0: as many as the weight implies
  std::size_t output_padding = 0;  // 0: not a transposed convolution
};
constexpr Places kForward{2, 3, 4, 5};
constexpr Places kTransposed{2, 4, 5, 6, 3};
constexpr Places kDepthwise{5, 4, 6};

// PyTorch has no shape functions for these operations.
void set_output_shape(Call& call, const Places& places) {
  const Tensor input = call.tensor(0);
  const Tensor weight = call.tensor(1);
  const bool transposed = places.output_padding != 0;
  const auto padding = call.argument(places.padding).toIntVector();
  const auto stride = call.argument(places.stride).toIntVector();
  const auto dilation = call.argument(places.dilation).toIntVector();
  const std::int64_t groups = places.groups != 0 ? call.argument(places.groups).toInt() : 1;
  std::vector<std::int64_t> sizes{input.size(0),
                                  transposed ? weight.size(1) * groups : weight.size(0)};
  for (std::int64_t i = 2; i < input.dim(); ++i) {
    const auto k = static_cast<std::size_t>(i - 2);
    const std::int64_t reach = dilation[k] * (weight.size(i) - 1) + 1;
    if (transposed) {
      sizes.push_back((input.size(i) - 1) * stride[k] - 2 * padding[k] + reach +
                      call.argument(places.output_padding).toIntVector()[k]);
    } else {
      sizes.push_back((input.size(i) + 2 * padding[k] - reach) / stride[k] + 1);
    }
  }
  const auto format = format_of(input, weight);
  call.set_shape(0, at::empty(sizes, input.options().device(at::kMeta), format));
}

// cudnn_convolution(input, weight, padding, stride, dilation, groups, ...)
void convolution_forward(Call& call) {
  set_output_shape(call, kForward);
  const Tensor output = call.allocate(0);
  const Tensor weight = call.tensor(1);
  note_source(call);
  take(call, workspace(describe(call.tensor(0), weight, output, call.argument(3).toIntVector(),
                                call.argument(4).toIntVector(), call.argument(5).toInt(), false),
                       Pass::forward));
  note_work(call, call.tensor(0), weight, output, call.argument(5).toInt(), false, Pass::forward);
}

// cudnn_convolution_transpose(input, weight, padding, output_padding, stride, dilation, groups,
// ...)
void transposed_forward(Call& call) {
  set_output_shape(call, kTransposed);
  const Tensor output = call.allocate(0);
  const Tensor weight = call.tensor(1);
  note_source(call);
  take(call, workspace(describe(call.tensor(0), weight, output, call.argument(4).toIntVector(),
                                call.argument(5).toIntVector(), call.argument(6).toInt(), true),
                       Pass::forward));
  note_work(call, call.tensor(0), weight, output, call.argument(6).toInt(), true, Pass::forward);
}

// _conv_depthwise2d(input, weight, kernel_size, bias, stride, padding, dilation)
void depthwise_forward(Call& call) {
  set_output_shape(call, kDepthwise);
  const Tensor output = call.allocate(0);
  note_work(call, call.tensor(0), call.tensor(1), output, output.size(1), false, Pass::forward);
}

// A copy in the layout that the kernel wants, if it has another.
void copy_unless_laid_out(Call& call, const Tensor& tensor, bool channels_last) {
  const auto format = channels_last && tensor.dim() == 4   ? at::MemoryFormat::ChannelsLast
                      : channels_last && tensor.dim() == 5 ? at::MemoryFormat::ChannelsLast3d
                                                           : at::MemoryFormat::Contiguous;
  if (!tensor.is_contiguous(format)) call.temporary(bytes_of(tensor));
}

void bias_gradient(Call& call, const Tensor& gradient, bool is_wanted) {
  if (!is_wanted) return;
  std::vector<std::int64_t> dimensions{0};
  for (std::int64_t i = 2; i < gradient.dim(); ++i) dimensions.push_back(i);
  reduce(call, call.allocate(2), gradient, dimensions, {4, 4});
  call.note_reduction(gradient);
}

// convolution_backward(grad_output, input, weight, bias_sizes, stride, padding, dilation,
// transposed, output_padding, groups, output_mask)
void convolution_backward(Call& call) {
  const Tensor gradient = call.tensor(0);
  const Tensor input = call.tensor(1);
  const Tensor weight = call.tensor(2);
  const auto stride = call.argument(4).toIntVector();
  const auto dilation = call.argument(6).toIntVector();
  const Convolution shape = describe(input, weight, gradient, stride, dilation,
                                     call.argument(9).toInt(), call.argument(7).toBool());
  const auto mask = call.argument(10).toBoolList();
  const bool transposed = call.argument(7).toBool();
  for (const auto& [pass, is_wanted] :
       {std::pair(Pass::input_gradient, mask[0]), std::pair(Pass::weight_gradient, mask[1])}) {
    if (is_wanted) {
      note_work(call, input, weight, gradient, call.argument(9).toInt(), transposed, pass);
    }
  }
  const auto backend = at::native::select_conv_backend(
      input, weight, std::nullopt, call.argument(4).toSymIntVector(),
      call.argument(5).toSymIntVector(), call.argument(6).toSymIntVector(),
      call.argument(7).toBool(), call.argument(8).toSymIntVector(), call.argument(9).toSymInt(),
      std::nullopt);
  if (backend == at::native::ConvBackend::CudaDepthwise2d) {
    copy_unless_laid_out(call, gradient, false);
    copy_unless_laid_out(call, input, false);
    call.allocate(1);
    call.allocate(0);
    bias_gradient(call, gradient, mask[2]);
    return;
  }
  note_source(call);
  copy_unless_laid_out(call, gradient, shape.channels_last);
  copy_unless_laid_out(call, input, shape.channels_last);
  copy_unless_laid_out(call, weight, shape.channels_last);
  // Up to PyTorch 2.11 their Meta kernel would have them laid out as the output's gradient.
  call.infer();
  for (const auto& [result, of] : {std::pair(0, input), std::pair(1, weight)}) {
    const auto index = static_cast<std::size_t>(result);
    if (!mask[index]) continue;
    call.set_shape(index,
                   at::empty(of.sizes(), of.options().device(at::kMeta), format_of(input, weight)));
  }
  if (mask[0]) {
    call.allocate(0);
    take(call, workspace(shape, Pass::input_gradient));
  }
  if (mask[1]) {
    call.allocate(1);
    take(call, workspace(shape, Pass::weight_gradient));
  }
  bias_gradient(call, gradient, mask[2]);
}

const RuleTable kConvolutionRules{
    {"cudnn_convolution", convolution_forward},
    {"cudnn_convolution_transpose", transposed_forward},
    {"convolution_backward", convolution_backward},
    {"_conv_depthwise2d", depthwise_forward},
};

}  // namespace
}  // namespace plimsoll::simulated
