// Recurrent layers: the path through cuDNN, and fused cells.
#include <ATen/Context.h>
#include <ATen/native/RNN.h>
#include <ATen/ops/_cudnn_init_dropout_state.h>
#include <ATen/ops/_cudnn_rnn.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "rules.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

// --- what cuDNN asks for -------------------------------------------------------------------------

constexpr std::int64_t kLstm = 2;
constexpr std::int64_t kGru = 3;

struct Network {
  std::int64_t mode = 0;  // 0 and 1: one gate; LSTM; GRU
  std::size_t input = 0;
  std::size_t hidden = 0;
  std::size_t projection = 0;
  std::size_t layers = 1;
  std::size_t directions = 1;
  bool drops = false;
  bool trains = false;
  std::size_t steps = 0;
  std::size_t batch = 0;
  std::size_t packed_tokens = 0;  // where sequences end at different times
  at::ScalarType type = at::kFloat;

  [[nodiscard]] std::size_t gates() const { return mode == kLstm ? 4 : mode == kGru ? 3 : 1; }
  [[nodiscard]] std::size_t output() const { return projection != 0 ? projection : hidden; }
  [[nodiscard]] std::size_t tokens() const {
    return packed_tokens != 0 ? packed_tokens : steps * batch;
  }
  [[nodiscard]] std::size_t item() const { return c10::elementSize(type); }

  [[nodiscard]] std::size_t weights(bool with_biases) const {
    std::size_t count = 0;
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const std::size_t in = layer == 0 ? input : output() * directions;
      count += gates() * hidden * (in + output()) + projection * hidden;
      if (with_biases) count += 2 * gates() * hidden;  // cuDNN keeps two, used or not
    }
    return count * directions;
  }
};

// What PyTorch asks cuDNN to run: layers with few hidden units get kernels of their own.
enum class Algorithm : std::uint8_t { standard, small, persistent };

Algorithm algorithm(const Network& net, bool is_forward) {
  if (net.projection != 0 || net.type == at::kBFloat16) return Algorithm::standard;
  const std::size_t most_simple = is_forward ? 384 : 256;
  const std::size_t most_gated = is_forward ? 192 : 128;
  if (net.hidden <= (net.gates() == 1 ? most_simple : most_gated)) return Algorithm::small;
  const bool is_persistent = net.type == at::kHalf && net.mode == kLstm && net.layers == 1 &&
                             net.directions == 1 && net.hidden % 128 == 0 && net.hidden <= 1024 &&
                             net.input % 128 == 0;
  return is_persistent ? Algorithm::persistent : Algorithm::standard;
}

// Fitted to recordings of cuDNN 9 on compute capability 9.0 (all modes, one and two layers and
// directions, two sizes with hidden = 2 * input, three types); exact for those.
std::size_t workspace_bytes(const Network& net, bool is_forward) {
  constexpr std::size_t kProduct = std::size_t{8} << 20;  // for each layer and direction
  const Algorithm kind = algorithm(net, is_forward);
  const bool is_small = kind == Algorithm::small;
  const bool is_two_way = net.directions == 2;
  const bool is_lstm = net.mode == kLstm;
  const std::size_t gates = net.gates();
  const std::size_t tokens = net.tokens();
  const std::size_t cells = net.layers * net.directions;

  if (net.packed_tokens != 0) {  // one recording
    const std::size_t width = is_two_way ? 2 * (gates + 3) : gates + 1;
    return kProduct * cells + net.item() * (tokens * width * net.hidden + net.weights(false)) + 256;
  }

  std::size_t wide = is_two_way ? 2 * (gates + 3) : gates + 1;
  if (is_small) wide += 4 * gates;
  if (net.drops && net.layers > 1) wide += net.directions;
  std::size_t sequences = tokens * (wide * net.hidden + net.input + net.projection);
  if (net.trains && !is_lstm) {  // the backward pass takes more
    std::size_t back = 0;
    if (is_small) {
      const std::size_t halves =
          23 + 5 * gates + (is_two_way ? 12 : 0) + (net.layers > 1 ? (is_two_way ? 4 : 2) : 0);
      back = tokens * net.hidden * halves / 2;
    } else if (is_two_way) {
      back = tokens * net.hidden * (net.layers > 1 ? 13 : 11);
    } else {
      const std::size_t chunk = net.layers > 1 ? std::min<std::size_t>(net.steps, 16) : net.steps;
      back = net.batch * net.hidden * (4 * net.steps + chunk);
    }
    sequences = std::max(sequences, back);
  }

  std::size_t states = is_lstm ? 8 : is_small ? 6 : 5;
  if (gates == 1 && !net.trains) states -= 2;
  if (is_two_way) ++states;
  std::size_t state_width = states * net.hidden;
  if (kind == Algorithm::standard) {
    if (is_two_way) state_width += net.hidden;
    if (is_lstm) state_width += 2 * net.output();
  }

  const std::size_t extra = kind == Algorithm::persistent ? 2 * kProduct : 0;
  return kProduct * cells + extra +
         net.item() * (sequences + state_width * net.batch * cells + net.weights(false)) + 256 +
         round_up(8 * net.batch, 32);
}

// What the backward pass needs of the forward one; fitted as the workspace is.
std::size_t reserve_bytes(const Network& net) {
  const std::size_t each = net.mode == kLstm ? 5 : net.mode == kGru ? 6 : 1;
  const std::size_t tokens = net.tokens();
  std::size_t width = each * net.hidden * net.layers * net.directions;
  if (net.projection != 0) width += (net.hidden + net.projection) * net.layers * net.directions;
  const std::size_t between = (net.layers - 1) * net.output() * net.directions;
  const std::size_t mask = net.drops ? round_up((tokens * between + 7) / 8, 64) : 0;
  return net.item() * tokens * (width + between) + mask + 256;
}

// --- operations ----------------------------------------------------------------------------------

// Arguments from `mode` on are in the same order in both passes.
Network network_of(const Call& call, std::size_t mode) {
  const auto number = [&](std::size_t index) {
    return static_cast<std::size_t>(call.argument(mode + index).toInt());
  };
  const Tensor input = call.tensor(0);
  Network net;
  net.mode = call.argument(mode).toInt();
  net.input = static_cast<std::size_t>(input.size(-1));
  net.hidden = number(1);
  net.projection = number(2);
  net.layers = number(3);
  net.trains = call.argument(mode + 6).toBool();
  net.drops = net.trains && call.argument(mode + 5).toDouble() > 0;
  net.directions = call.argument(mode + 7).toBool() ? 2 : 1;
  net.type = input.scalar_type();
  const std::vector<std::int64_t> batches = call.argument(mode + 8).toIntVector();
  if (batches.empty()) {
    const bool batch_first = call.argument(mode + 4).toBool();
    net.steps = static_cast<std::size_t>(input.size(batch_first ? 1 : 0));
    net.batch = static_cast<std::size_t>(input.size(batch_first ? 0 : 1));
  } else {
    net.steps = batches.size();
    net.batch = static_cast<std::size_t>(batches[0]);
    net.packed_tokens = static_cast<std::size_t>(input.size(0));
  }
  return net;
}

bool turns_batch(const Call& call, std::size_t mode) {
  return call.argument(mode + 4).toBool() && call.argument(mode + 8).toIntVector().empty();
}

std::vector<std::int64_t> with_last(at::IntArrayRef sizes, std::size_t last) {
  std::vector<std::int64_t> made = sizes.vec();
  made.back() = static_cast<std::int64_t>(last);
  return made;
}

// The input in the order of time, where it is in another.
void turn_input(Call& call, std::size_t mode) {
  const Tensor input = call.tensor(0);
  const Tensor in_time = turns_batch(call, mode) ? input.transpose(0, 1) : input;
  if (!in_time.is_contiguous()) call.temporary(elements(input) * input.itemsize());
}

Tensor turned(const Call& call, std::size_t mode, const std::vector<std::int64_t>& sizes,
              at::ScalarType type) {
  if (!turns_batch(call, mode)) return meta_empty(sizes, type);
  std::vector<std::int64_t> in_time = sizes;
  std::swap(in_time[0], in_time[1]);
  return meta_empty(in_time, type).transpose(0, 1);
}

// (output, hy, cy, reserve, weight_buf)
void recurrent_forward(Call& call) {
  constexpr std::size_t kMode = 6;
  const Network net = network_of(call, kMode);
  const Tensor input = call.tensor(0);
  const Tensor buffer = call.tensor(3);
  const Tensor hx = call.tensor(4);
  const Tensor cx = call.tensor(5);
  call.set_shape(
      0, turned(call, kMode, with_last(input.sizes(), net.output() * net.directions), net.type));
  call.set_shape(1, meta_empty(hx.sizes(), net.type));
  call.set_shape(2, cx.defined() ? meta_empty(cx.sizes(), net.type) : meta_empty({0}, net.type));
  const std::size_t reserve = net.trains ? reserve_bytes(net) : 0;
  call.set_shape(3, meta_empty({static_cast<std::int64_t>(reserve)}, at::kByte));
  call.set_shape(4, buffer.defined()
                        ? buffer
                        : meta_empty({static_cast<std::int64_t>(net.weights(true))}, net.type));
  turn_input(call, kMode);
  for (const std::size_t result : {0, 1, 2, 4}) call.allocate(result);
  call.temporary(workspace_bytes(net, true));
  call.allocate(3);
  call.release_last();
}

// A list for a result that is one.
template <typename AnyCall>
void set_list(AnyCall& call, std::size_t index, const c10::List<Tensor>& list) {
  if constexpr (requires { call.set_shape(index, c10::IValue(list)); }) {
    call.set_shape(index, c10::IValue(list));
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "plimsoll cannot give result ", index, " as a list");
  }
}

// (dx, dhx, dcx, gradients of the weights: views of one buffer)
void recurrent_backward(Call& call) {
  constexpr std::size_t kMode = 10;
  const Network net = network_of(call, kMode);
  const Tensor input = call.tensor(0);
  const std::vector<Tensor> weights = call.tensors(1);
  const Tensor hx = call.tensor(4);
  const Tensor cx = call.tensor(5);
  const Tensor output = call.tensor(6);
  if (!call.tensor(7).defined() && !call.tensor(8).defined() && !call.tensor(9).defined()) {
    for (const std::size_t result : {0, 1, 2}) call.set_shape(result, Tensor());
    set_list(call, 3, c10::List<Tensor>(std::vector<Tensor>(weights.size())));
    return;
  }
  call.set_shape(0, turned(call, kMode, input.sizes().vec(), net.type));
  call.set_shape(1, meta_empty(hx.sizes(), net.type));
  call.set_shape(2, cx.defined() ? meta_empty(cx.sizes(), net.type) : Tensor());
  // Gradients that are missing are zeros of their shape.
  for (const auto& [given, like] :
       {std::pair{call.tensor(7), output}, {call.tensor(8), hx}, {call.tensor(9), cx}}) {
    if (!given.defined() && like.defined()) call.temporary(elements(like) * like.itemsize());
  }
  const std::size_t input_bytes = elements(input) * input.itemsize();
  const bool is_turned =
      !(turns_batch(call, kMode) ? input.transpose(0, 1) : input).is_contiguous();
  std::size_t copy = is_turned ? call.temporary(input_bytes) : 0;
  const Tensor gradient = call.tensor(7);
  const bool copies_gradient =
      gradient.defined() &&
      !(turns_batch(call, kMode) ? gradient.transpose(0, 1) : gradient).is_contiguous();
  const std::size_t gradient_copy =
      copies_gradient ? call.temporary(elements(gradient) * gradient.itemsize()) : 0;
  for (const std::size_t result : {0, 1, 2}) call.allocate(result);
  const std::size_t workspace = workspace_bytes(net, false);
  call.temporary(workspace);
  call.release_last();
  if (copies_gradient) call.release(gradient_copy);
  if (is_turned) call.release(copy);

  if (!call.argument(kMode + 11).toBoolList().get(3)) {
    set_list(call, 3, c10::List<Tensor>());
    return;
  }
  if (is_turned) copy = call.temporary(input_bytes);
  const Tensor buffer = make_tensor(
      meta_empty({static_cast<std::int64_t>(net.weights(true))}, net.type), call.device());
  const std::size_t last = call.temporary(workspace);
  c10::List<Tensor> gradients;
  const std::size_t full = net.projection != 0 ? 5 : 4;
  if (static_cast<std::size_t>(call.argument(2).toInt()) == full) {
    std::int64_t offset = 0;
    for (const Tensor& weight : weights) {
      Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(buffer.storage()),
                                                             buffer.key_set(), buffer.dtype());
      view.unsafeGetTensorImpl()->set_sizes_contiguous(weight.sizes());
      view.unsafeGetTensorImpl()->set_storage_offset(offset);
      offset += weight.numel();
      gradients.push_back(view);
    }
  } else {  // cuDNN's layout has biases where the layer has none
    for (const Tensor& weight : weights) {
      gradients.push_back(make_tensor(meta_empty(weight.sizes(), net.type), call.device()));
    }
  }
  call.release(last);
  if (is_turned) call.release(copy);
  set_list(call, 3, gradients);
}

// One buffer for all weights, which become views of it.
void flatten_weight(Call& call) {
  const std::vector<Tensor> weights = call.tensors(0);
  const auto number = [&](std::size_t index) {
    return static_cast<std::size_t>(call.argument(index).toInt());
  };
  Network net;
  net.input = number(2);
  net.mode = call.argument(3).toInt();
  net.hidden = number(4);
  net.projection = number(5);
  net.layers = number(6);
  net.directions = call.argument(8).toBool() ? 2 : 1;
  call.set_shape(
      0, meta_empty({static_cast<std::int64_t>(net.weights(true))}, weights.at(0).scalar_type()));
  const Tensor buffer = call.allocate(0);
  std::int64_t offset = 0;
  for (const bool is_bias : {false, true}) {
    for (const Tensor& weight : weights) {
      if ((weight.dim() == 1) != is_bias) continue;
      c10::TensorImpl* const impl = weight.unsafeGetTensorImpl();
      const std::vector<std::int64_t> sizes = weight.sizes().vec();
      impl->set_storage_keep_dtype(c10::Storage(buffer.storage()));
      impl->set_sizes_contiguous(sizes);
      impl->set_storage_offset(offset);
      offset += weight.numel();
    }
  }
}

// Random states for as many threads as the chip runs at once.
void dropout_state(Call& call) {
  constexpr std::int64_t kBytesPerMultiprocessor = 49152;
  call.set_shape(
      0, meta_empty({kBytesPerMultiprocessor * call.properties().multiprocessors}, at::kByte));
}

void lstm_cell(Call& call) {
  for (const std::size_t result : {2, 0, 1}) call.allocate(result);
}

// (hy, workspace)
void gru_cell(Call& call) {
  const Tensor hx = call.tensor(2);
  call.set_shape(0, meta_empty(hx.sizes(), hx.scalar_type()));
  call.set_shape(1, meta_empty({hx.size(0), hx.size(1) * 5}, hx.scalar_type()));
  for (const std::size_t result : {1, 0}) call.allocate(result);
}

// (of the input's gates, of the hidden gates, of hx, of both biases)
void gru_cell_backward(Call& call) {
  const Tensor grad = call.tensor(0);
  const at::ScalarType type = grad.scalar_type();
  const std::int64_t gates = grad.size(1) * 3;
  call.set_shape(0, meta_empty({grad.size(0), gates}, type));
  call.set_shape(1, meta_empty({grad.size(0), gates}, type));
  call.set_shape(2, meta_empty(grad.sizes(), type));
  const Tensor bias = call.argument(2).toBool() ? meta_empty({gates}, type) : Tensor();
  call.set_shape(3, bias);
  call.set_shape(4, bias);
}

constexpr RuleRow kRecurrentRules[] = {
    {"_cudnn_rnn", recurrent_forward},
    {"_cudnn_rnn_backward", recurrent_backward},
    {"_cudnn_rnn_flatten_weight", flatten_weight},
    {"_cudnn_init_dropout_state", dropout_state},
    {"_thnn_fused_lstm_cell", lstm_cell},
    {"_thnn_fused_gru_cell", gru_cell},
    {"_thnn_fused_lstm_cell_backward_impl", nothing},
    {"_thnn_fused_gru_cell_backward", gru_cell_backward},
};

// --- at::lstm and its like -----------------------------------------------------------------------

// Random states for dropout, one for each device; a new seed makes new ones.
Tensor dropout_state_of(const Tensor& input, double dropout, bool train) {
  struct State {
    Tensor buffer;
    std::uint64_t seed = 0;
  };
  static auto* const states = new std::map<c10::DeviceIndex, State>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  State& state = (*states)[input.device().index()];
  if (!train || dropout <= 0) return state.buffer;
  const std::uint64_t seed = at::globalContext().defaultGenerator(input.device()).current_seed();
  if (!state.buffer.defined() || state.seed != seed) {
    {
      const Tensor drawn = at::empty({}, input.options().dtype(at::kLong));
    }
    state.buffer = at::_cudnn_init_dropout_state(dropout, train, static_cast<std::int64_t>(seed),
                                                 input.options().dtype(at::kByte));
    state.seed = seed;
  }
  return state.buffer;
}

// The buffer that all weights are views of; undefined where each has its own memory.
Tensor flat_weights(at::TensorList weights, const Network& net) {
  const c10::StorageImpl* const storage = weights[0].storage().unsafeGetStorageImpl();
  const std::size_t count = net.weights(true);
  if (storage->nbytes() < count * net.item()) return {};
  for (const Tensor& weight : weights) {
    if (weight.storage().unsafeGetStorageImpl() != storage || !weight.is_contiguous()) return {};
  }
  Tensor buffer = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(weights[0].storage()), c10::DispatchKeySet(c10::DispatchKey::CUDA),
      weights[0].dtype());
  buffer.unsafeGetTensorImpl()->set_sizes_contiguous(static_cast<std::int64_t>(count));
  return buffer;
}

struct Layer {
  bool has_biases;
  std::int64_t mode;
  std::int64_t layers;
  double dropout;
  bool train;
  bool bidirectional;
  bool batch_first;
};

std::tuple<Tensor, Tensor, Tensor> run_cudnn(const Tensor& input, const Tensor& hx,
                                             const Tensor& cx, at::TensorList weights,
                                             at::IntArrayRef batches, const Layer& layer) {
  const c10::DeviceGuard guard(input.device());
  const bool projects = cx.defined() && cx.size(2) != hx.size(2);
  const std::int64_t hidden = projects ? cx.size(2) : hx.size(2);
  const std::int64_t projection = projects ? hx.size(2) : 0;
  Network net;
  net.mode = layer.mode;
  net.input = static_cast<std::size_t>(input.size(-1));
  net.hidden = static_cast<std::size_t>(hidden);
  net.projection = static_cast<std::size_t>(projection);
  net.layers = static_cast<std::size_t>(layer.layers);
  net.directions = layer.bidirectional ? 2 : 1;
  net.type = weights[0].scalar_type();
  const Tensor buffer = flat_weights(weights, net);
  const Tensor state = dropout_state_of(input, layer.dropout, layer.train);
  const std::int64_t stride = (layer.has_biases ? 4 : 2) + (projects ? 1 : 0);
  const auto given = [](const Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  auto results = at::_cudnn_rnn(input, weights, stride, given(buffer), hx, given(cx), layer.mode,
                                hidden, projection, layer.layers, layer.batch_first, layer.dropout,
                                layer.train, layer.bidirectional, batches, given(state));
  return {std::get<0>(results), std::get<1>(results), std::get<2>(results)};
}

at::IntArrayRef as_sizes(const Tensor& batches) {
  return {batches.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(batches.size(0))};
}

void lstm(Tensor& output, Tensor& hy, Tensor& cy, const Tensor& input, at::TensorList hidden,
          at::TensorList weights, bool has_biases, std::int64_t layers, double dropout, bool train,
          bool bidirectional, bool batch_first) {
  std::tie(output, hy, cy) =
      run_cudnn(input, hidden[0], hidden[1], weights, {},
                {has_biases, kLstm, layers, dropout, train, bidirectional, batch_first});
}

void packed_lstm(Tensor& output, Tensor& hy, Tensor& cy, const Tensor& input, const Tensor& batches,
                 at::TensorList hidden, at::TensorList weights, bool has_biases,
                 std::int64_t layers, double dropout, bool train, bool bidirectional) {
  std::tie(output, hy, cy) =
      run_cudnn(input, hidden[0], hidden[1], weights, as_sizes(batches),
                {has_biases, kLstm, layers, dropout, train, bidirectional, false});
}

template <std::int64_t mode>
void rnn(Tensor& output, Tensor& hy, const Tensor& input, const Tensor& hx, at::TensorList weights,
         bool has_biases, std::int64_t layers, double dropout, bool train, bool bidirectional,
         bool batch_first) {
  std::tie(output, hy, std::ignore) =
      run_cudnn(input, hx, {}, weights, {},
                {has_biases, mode, layers, dropout, train, bidirectional, batch_first});
}

template <std::int64_t mode>
void packed_rnn(Tensor& output, Tensor& hy, const Tensor& input, const Tensor& batches,
                const Tensor& hx, at::TensorList weights, bool has_biases, std::int64_t layers,
                double dropout, bool train, bool bidirectional) {
  std::tie(output, hy, std::ignore) =
      run_cudnn(input, hx, {}, weights, as_sizes(batches),
                {has_biases, mode, layers, dropout, train, bidirectional, false});
}

// PyTorch's layers ask these functions for cuDNN, not the dispatcher.
[[maybe_unused]] const bool is_registered = [] {
  using namespace at::native;
  lstm_cudnn_stub.set_cuda_dispatch_ptr(&lstm);
  lstm_packed_cudnn_stub.set_cuda_dispatch_ptr(&packed_lstm);
  gru_cudnn_stub.set_cuda_dispatch_ptr(&rnn<kGru>);
  gru_packed_cudnn_stub.set_cuda_dispatch_ptr(&packed_rnn<kGru>);
  rnn_relu_cudnn_stub.set_cuda_dispatch_ptr(&rnn<0>);
  rnn_relu_packed_cudnn_stub.set_cuda_dispatch_ptr(&packed_rnn<0>);
  rnn_tanh_cudnn_stub.set_cuda_dispatch_ptr(&rnn<1>);
  rnn_tanh_packed_cudnn_stub.set_cuda_dispatch_ptr(&packed_rnn<1>);
  return true;
}();

}  // namespace

std::span<const RuleRow> recurrent_rules() { return kRecurrentRules; }

}  // namespace plimsoll::simulated
