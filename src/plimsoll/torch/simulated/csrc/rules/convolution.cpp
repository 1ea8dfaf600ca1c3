// Convolutions that run through cuDNN. PyTorch runs the plan that cuDNN's heuristics rank first. If
// the program sets torch.backends.cudnn.benchmark, PyTorch runs the fastest plan
// (aten/src/ATen/native/cudnn/Conv_v8.cpp).
#include <ATen/Context.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "device/memory.h"
#include "rules/blas.h"
#include "rules/convolution_workspaces.h"
#include "rules/measured_convolutions.h"
#include "rules/reduction.h"
#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

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

// Holds the numeric parameters of `aten::convolution`.
struct Numbers {
  std::vector<std::int64_t> stride, padding, dilation;
  std::int64_t groups = 1;
  bool transposed = false;
  std::vector<std::int64_t> output_padding;
};

Convolution describe(const Tensor& input, const Tensor& weight, const Tensor& output,
                     const Numbers& numbers) {
  Convolution call;
  const bool is_line = input.dim() == 4 && (input.size(2) == 1 || weight.size(2) == 1) &&
                       weight.size(-1) != weight.size(2);
  const bool is_flat =
      input.dim() == 3 || (input.dim() == 4 && input.size(2) == 1 && weight.size(2) == 1);
  const bool is_volume = input.dim() == 5;
  call.kind = is_line ? kLines : (is_volume ? kVolumes : kImages) + (numbers.transposed ? 1 : 0);
  call.type = input.scalar_type() == at::kBFloat16 ? 1 : input.scalar_type() == at::kHalf ? 2 : 0;
  call.channels_last = call.kind != kLines && wants_channels_last(input, weight);
  call.batch = static_cast<double>(input.size(0));
  call.channels = static_cast<double>(input.size(1));
  call.out_channels = static_cast<double>(output.size(1));
  double area = 1;
  for (std::int64_t i = 2; i < input.dim(); ++i) area *= static_cast<double>(input.size(i));
  call.side = std::max(1.0, is_line ? area : is_volume ? std::cbrt(area) : std::sqrt(area));
  if (input.dim() == 4 && output.dim() == 4) call.tiles = tiles_of(output.size(2), output.size(3));
  call.kernel = weight.size(-1);
  call.stride = numbers.stride.empty() ? 1 : numbers.stride.back();
  call.dilation = numbers.dilation.empty() ? 1 : numbers.dilation.back();
  call.groups = numbers.groups;
  call.bytes = {storage(input), storage(weight), storage(output)};
  call.words = in_words(input, weight, numbers.stride, numbers.padding, numbers.dilation,
                        numbers.groups, numbers.transposed, numbers.output_padding,
                        !is_flat && wants_channels_last(input, weight));
  return call;
}

// The report prints these texts as assumptions. Each text says why only a range is known for the
// size of a workspace. prediction/assumed.py has the same texts.
constexpr std::string_view kNotMeasured =
    "plimsoll estimates its workspace from similar convolutions, as this one was not measured";
constexpr std::string_view kSearched =
    "cudnn.benchmark keeps the fastest plan, which differs from run to run";

// Returns whether cuDNN's settings are those under which the tables were measured.
bool has_usual_settings(const Tensor& input, Plan plan) {
  const auto& context = at::globalContext();
  return !context.deterministicCuDNN() && !context.deterministicAlgorithms() &&
         (context.allowTF32CuDNN() || input.scalar_type() != at::kFloat) &&
         (plan != Plan::largest || search_settings().most_plans == SearchSettings{}.most_plans);
}

// Returns the plan that the calling thread has kept for a convolution. Like PyTorch, plimsoll
// keeps the plan even if the program changes cudnn.benchmark later.
Plan& kept_plan(const Convolution& shape, Pass pass, bool& is_new) {
  using Key = std::vector<double>;
  thread_local std::map<Key, Plan> kept;
  const auto number = [](auto value) { return static_cast<double>(value); };
  Key key{
      number(pass),         number(shape.kind),   number(shape.type),   number(shape.channels_last),
      shape.batch,          shape.channels,       shape.side,           shape.out_channels,
      number(shape.kernel), number(shape.stride), number(shape.groups), number(shape.dilation)};
  // The sizes of the operands tell different paddings apart.
  key.insert(key.end(), shape.bytes.begin(), shape.bytes.end());
  const auto [place, is_first] = kept.try_emplace(std::move(key), Plan::first);
  is_new = is_first;
  return place->second;
}

// Returns whether a card is more like an H200 than an H100. An H200 differs from an H100 only in
// its memory. For 2 % of the convolutions, cuDNN takes different workspaces on the two cards.
bool is_like_h200(const DeviceProperties& card) {
  constexpr double kH100BytesPerNs = 3350, kH200BytesPerNs = 4800;
  return card.bytes_per_ns > (kH100BytesPerNs + kH200BytesPerNs) / 2;
}

// Returns the workspace that was measured for exactly this convolution: on the call's own card, or
// else on a similar card (H200 or H100).
std::optional<UncertainMemory> measured_workspace(const Call& call, const Convolution& shape,
                                                  Pass pass, Plan plan) {
  if (auto found = measured_on_card(call.device(), shape.words, pass, plan)) return found;
  if (chip_of(call.properties()).measured == 0) return std::nullopt;
  if (plan == Plan::first && is_like_h200(call.properties())) {
    if (auto found = measured_on_h200(shape, pass)) return found;
  }
  return measured_on_h100(shape.words, pass, plan);
}

UncertainMemory workspace_of(const Call& call, Convolution shape, Pass pass, Plan plan) {
  shape.has_usual_settings = has_usual_settings(call.tensor(0), plan);
  if (shape.has_usual_settings) {
    if (const auto measured = measured_workspace(call, shape, pass, plan)) return *measured;
  }
  return convolution_workspace(shape, pass, plan, chip_of(call.properties()));
}

void take(Call& call, const UncertainMemory& workspace, Plan plan) {
  if (workspace.least == workspace.most) {
    if (workspace.bytes != 0) call.release(call.temporary(workspace.bytes));
    return;
  }
  call.assume(chip_of(call.properties()).measured == 0 ? kOtherChip
              : plan == Plan::fastest                  ? kSearched
                                                       : kNotMeasured);
  call.take_uncertain(workspace);
}

// Adds the steps of cudnn.benchmark's search. During the search, all plans share one workspace. The
// workspace has the size that the most demanding plan needs, but at most the size of the largest
// request that would succeed on the card. Before the fastest plan runs, PyTorch returns cached
// memory to the driver.
void search(Call& call, const Convolution& shape, Pass pass) {
  call.then([workspace = workspace_of(call, shape, pass, Plan::largest)](Call& then) mutable {
    constexpr std::uint64_t kPiece = std::uint64_t{2} << 20;  // the driver's granularity
    const std::uint64_t room = largest_request(then.device()) / kPiece * kPiece;
    for (std::uint64_t* const each : {&workspace.bytes, &workspace.least, &workspace.most}) {
      *each = std::min(*each, room);
    }
    take(then, workspace, Plan::largest);
    if (search_settings().empties_cache) then.empty_cache();
  });
}

void take_workspace(Call& call, const Convolution& shape, Pass pass) {
  note_convolution(shape.words);
  bool is_new = false;
  Plan& plan = kept_plan(shape, pass, is_new);
  if (is_new && at::globalContext().benchmarkCuDNN()) {
    plan = Plan::fastest;
    search(call, shape, pass);
  }
  take(call, workspace_of(call, shape, pass, plan), plan);
}

double positions(const Tensor& image) {
  return image.size(1) == 0
             ? 0
             : static_cast<double>(image.numel()) / static_cast<double>(image.size(1));
}

// Notes the work of a pass. In a backward pass, `output` is the gradient of the output.
void note_work(Call& call, const Tensor& input, const Tensor& weight, const Tensor& output,
               std::int64_t groups, bool transposed, Pass pass) {
  // A transposed convolution computes the input gradient of a plain convolution. `wide` is the
  // plain convolution's input, and `narrow` is its output.
  const Tensor& wide = transposed ? output : input;
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

// Holds the positions of an operation's parameters among its arguments.
struct Places {
  std::size_t padding, stride, dilation;
  std::size_t groups = 0;          // 0: the operation has no such argument
  std::size_t output_padding = 0;  // 0: not a transposed convolution
};
constexpr Places kForward{2, 3, 4, 5};
constexpr Places kTransposed{2, 4, 5, 6, 3};
constexpr Places kWithoutCudnn{5, 4, 6};     // of _conv_depthwise2d
constexpr Places kWithoutDilation{5, 4, 0};  // of _slow_conv2d_forward

// Sets the result's shape, because PyTorch has no Meta kernels for these operations.
void set_output_shape(Call& call, const Places& places) {
  const Tensor input = call.tensor(0);
  const Tensor weight = call.tensor(1);
  const bool transposed = places.output_padding != 0;
  const auto padding = call.argument(places.padding).toIntVector();
  const auto stride = call.argument(places.stride).toIntVector();
  const auto dilation = places.dilation != 0 ? call.argument(places.dilation).toIntVector()
                                             : std::vector<std::int64_t>(stride.size(), 1);
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
  const auto format = places.groups == 0 ? at::MemoryFormat::Contiguous : format_of(input, weight);
  call.set_shape(0, at::empty(sizes, input.options().device(at::kMeta), format));
}

// Simulates cudnn_convolution(input, weight, padding, stride, dilation, groups, ...).
void convolution_forward(Call& call) {
  set_output_shape(call, kForward);
  const Tensor output = call.allocate(0);
  const Tensor weight = call.tensor(1);
  const Numbers numbers{call.argument(3).toIntVector(), call.argument(2).toIntVector(),
                        call.argument(4).toIntVector(), call.argument(5).toInt()};
  take_workspace(call, describe(call.tensor(0), weight, output, numbers), Pass::forward);
  note_work(call, call.tensor(0), weight, output, call.argument(5).toInt(), false, Pass::forward);
}

// Simulates cudnn_convolution_transpose(input, weight, padding, output_padding, stride, dilation,
// groups, ...).
void transposed_forward(Call& call) {
  set_output_shape(call, kTransposed);
  const Tensor output = call.allocate(0);
  const Tensor weight = call.tensor(1);
  const Numbers numbers{call.argument(4).toIntVector(),
                        call.argument(2).toIntVector(),
                        call.argument(5).toIntVector(),
                        call.argument(6).toInt(),
                        true,
                        call.argument(3).toIntVector()};
  take_workspace(call, describe(call.tensor(0), weight, output, numbers), Pass::forward);
  note_work(call, call.tensor(0), weight, output, call.argument(6).toInt(), true, Pass::forward);
}

// Takes memory for a copy in the layout that the kernel needs, unless the tensor has that layout.
void copy_unless_laid_out(Call& call, const Tensor& tensor, bool channels_last) {
  const auto format = channels_last && tensor.dim() == 4   ? at::MemoryFormat::ChannelsLast
                      : channels_last && tensor.dim() == 5 ? at::MemoryFormat::ChannelsLast3d
                                                           : at::MemoryFormat::Contiguous;
  if (!tensor.is_contiguous(format)) call.temporary(bytes_of(tensor));
}

// Simulates _conv_depthwise2d(input, weight, kernel_size, bias, stride, padding, dilation). The
// convolution of pictures makes the input contiguous before it calls this operation.
void depthwise_forward(Call& call) {
  set_output_shape(call, kWithoutCudnn);
  const Tensor output = call.allocate(0);
  note_work(call, call.tensor(0), call.tensor(1), output, output.size(1), false, Pass::forward);
}

// Simulates conv_depthwise3d, which has the same arguments. The kernel reads contiguous tensors.
void depthwise_volume_forward(Call& call) {
  set_output_shape(call, kWithoutCudnn);
  copy_unless_contiguous(call, call.tensor(0));
  const Tensor output = call.allocate(0);
  copy_unless_contiguous(call, call.tensor(1));
  copy_unless_contiguous(call, call.tensor(3));
  note_work(call, call.tensor(0), call.tensor(1), output, output.size(1), false, Pass::forward);
}

void bias_gradient(Call& call, const Tensor& gradient, bool is_wanted) {
  if (!is_wanted) return;
  std::vector<std::int64_t> dimensions{0};
  for (std::int64_t i = 2; i < gradient.dim(); ++i) dimensions.push_back(i);
  allocate_sum(call, 2, gradient, dimensions);
  call.note_reduction(gradient);
}

// --- kernels that are not cuDNN's ----------------------------------------------------------------

// Takes the buffer of columns, into which a kernel unfolds one sample. Then takes the workspace of
// the product with the weight.
void take_columns(Call& call, const Tensor& input, const Tensor& weight, const Tensor& output,
                  bool transposed) {
  const Tensor& narrow = transposed ? input : output;
  std::int64_t count = weight.numel() / std::max<std::int64_t>(1, weight.size(0));
  for (std::int64_t i = 2; i < narrow.dim(); ++i) count *= narrow.size(i);
  call.temporary(static_cast<std::size_t>(count) * input.itemsize());
  take_blas_workspace(call);
}

// Simulates _slow_conv2d_forward(input, weight, kernel_size, bias, stride, padding), and
// slow_conv_dilated2d and slow_conv_dilated3d, which have `dilation` too. PyTorch calls them if
// cuDNN is switched off.
void unfolded_forward(Call& call) {
  set_output_shape(call, call.argument_count() > 6 ? kWithoutCudnn : kWithoutDilation);
  for (const std::size_t operand : {0, 1, 3}) copy_unless_contiguous(call, call.tensor(operand));
  const Tensor output = call.allocate(0);
  take_columns(call, call.tensor(0), call.tensor(1), output, false);
  note_work(call, call.tensor(0), call.tensor(1), output, 1, false, Pass::forward);
}

// Simulates the gradients of those kernels, and of transposed convolutions that cuDNN does not do.
// For several groups, PyTorch computes one group after another and joins the gradients.
void unfolded_backward(Call& call, const Tensor& gradient, bool transposed) {
  const Tensor input = call.tensor(1);
  const Tensor weight = call.tensor(2);
  for (const Tensor& operand : {gradient, input, weight}) copy_unless_contiguous(call, operand);
  call.allocate(0);
  call.allocate(1);
  take_columns(call, input, weight, gradient, transposed);
  bias_gradient(call, gradient, call.argument(10).toBoolList()[2]);
  if (call.argument(9).toInt() != 1) {
    call.assume_memory("plimsoll counts its gradients, and not the parts that PyTorch joins");
  }
}

void depthwise_backward(Call& call, const Tensor& gradient) {
  copy_unless_laid_out(call, gradient, false);
  copy_unless_laid_out(call, call.tensor(1), false);
  call.allocate(1);
  call.allocate(0);
  bias_gradient(call, gradient, call.argument(10).toBoolList()[2]);
}

void depthwise_volume_backward(Call& call, const Tensor& gradient) {
  call.allocate(0);
  call.allocate(1);
  for (const Tensor& operand : {gradient, call.tensor(1), call.tensor(2)}) {
    copy_unless_contiguous(call, operand);
  }
  bias_gradient(call, gradient, call.argument(10).toBoolList()[2]);
}

// Sets the shapes of the gradients that the program wants. Up to PyTorch 2.11 the Meta kernel gives
// them a wrong layout: the layout of the output's gradient.
void set_gradient_shapes(Call& call, at::MemoryFormat format) {
  call.infer();
  const auto mask = call.argument(10).toBoolList();
  for (const std::size_t result : {0, 1}) {
    if (!mask[result]) continue;
    const Tensor of = call.tensor(result + 1);
    call.set_shape(result, at::empty(of.sizes(), of.options().device(at::kMeta), format));
  }
}

// Simulates the gradients of a convolution that cuDNN does not do. Returns false if cuDNN does it.
bool backward_without_cudnn(Call& call, const Tensor& gradient, at::native::ConvBackend backend) {
  using Backend = at::native::ConvBackend;
  const bool is_depthwise =
      backend == Backend::CudaDepthwise2d || backend == Backend::CudaDepthwise3d;
  const bool is_unfolded = backend == Backend::Slow2d || backend == Backend::SlowDilated2d ||
                           backend == Backend::SlowDilated3d ||
                           backend == Backend::SlowTranspose2d ||
                           backend == Backend::SlowTranspose3d;
  if (!is_depthwise && !is_unfolded) return false;
  set_gradient_shapes(call, at::MemoryFormat::Contiguous);
  if (is_unfolded) {
    unfolded_backward(call, gradient, call.argument(7).toBool());
  } else if (backend == Backend::CudaDepthwise2d) {
    depthwise_backward(call, gradient);
  } else {
    depthwise_volume_backward(call, gradient);
  }
  return true;
}

// Simulates convolution_backward(grad_output, input, weight, bias_sizes, stride, padding,
// dilation, transposed, output_padding, groups, output_mask).
void convolution_backward(Call& call) {
  const Tensor gradient = call.tensor(0);
  const Tensor input = call.tensor(1);
  const Tensor weight = call.tensor(2);
  const bool transposed = call.argument(7).toBool();
  const Numbers numbers{call.argument(4).toIntVector(),
                        call.argument(5).toIntVector(),
                        call.argument(6).toIntVector(),
                        call.argument(9).toInt(),
                        transposed,
                        call.argument(8).toIntVector()};
  const Convolution shape = describe(input, weight, gradient, numbers);
  const auto mask = call.argument(10).toBoolList();
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
  if (backward_without_cudnn(call, gradient, backend)) return;
  copy_unless_laid_out(call, gradient, shape.channels_last);
  copy_unless_laid_out(call, input, shape.channels_last);
  copy_unless_laid_out(call, weight, shape.channels_last);
  set_gradient_shapes(call, format_of(input, weight));
  if (mask[0]) {
    call.allocate(0);
    take_workspace(call, shape, Pass::input_gradient);
  }
  if (mask[1]) {
    call.allocate(1);
    take_workspace(call, shape, Pass::weight_gradient);
  }
  bias_gradient(call, gradient, mask[2]);
}

const RuleTable kConvolutionRules{
    {"cudnn_convolution", convolution_forward},
    {"cudnn_convolution_transpose", transposed_forward},
    {"convolution_backward", convolution_backward},
    {"_conv_depthwise2d", depthwise_forward},
    {"conv_depthwise3d", depthwise_volume_forward},
    {"_slow_conv2d_forward", unfolded_forward},
    {"slow_conv_dilated2d", unfolded_forward},
    {"slow_conv_dilated3d", unfolded_forward},
};

}  // namespace
}  // namespace plimsoll::simulated
