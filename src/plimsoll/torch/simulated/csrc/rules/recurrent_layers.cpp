// Connects PyTorch's recurrent layers to the cuDNN operations. PyTorch calls cuDNN's layers
// through function pointers (stubs), not through the dispatcher.
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/native/RNN.h>
#include <ATen/ops/_cudnn_init_dropout_state.h>
#include <ATen/ops/_cudnn_rnn.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "rules/cudnn_rnn.h"
#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

// Returns the random states for a layer's dropout. Each device has one buffer, which is replaced
// when the seed has changed.
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

// Returns a tensor of `sizes` that shares the buffer's memory from element `offset` on. To autograd
// it is not a view.
Tensor part_of(const Tensor& buffer, at::IntArrayRef sizes, std::int64_t offset) {
  Tensor part = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(buffer.storage()), c10::DispatchKeySet(c10::DispatchKey::CUDA), buffer.dtype());
  part.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  part.unsafeGetTensorImpl()->set_storage_offset(offset);
  return part;
}

// Returns the one buffer of which all weights are views; undefined if the weights have separate
// memory.
Tensor flat_weights(at::TensorList weights, const Network& net) {
  const c10::StorageImpl* const storage = weights[0].storage().unsafeGetStorageImpl();
  const std::size_t count = net.weights(true);
  if (storage->nbytes() < count * net.item()) return {};
  for (const Tensor& weight : weights) {
    if (weight.storage().unsafeGetStorageImpl() != storage || !weight.is_contiguous()) return {};
  }
  return part_of(weights[0], static_cast<std::int64_t>(count), 0);
}

// Copies the weights in half precision into parts of a buffer: all matrices, then all biases.
// Autograd records the copies.
std::vector<Tensor> half_weights(const std::vector<Tensor>& weights, const Tensor& buffer) {
  std::vector<std::int64_t> offsets(weights.size());
  std::int64_t end = 0;
  for (const bool is_bias : {false, true}) {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if ((weights[i].dim() == 1) != is_bias) continue;
      offsets[i] = end;
      end += weights[i].numel();
    }
  }
  std::vector<Tensor> parts;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    parts.push_back(part_of(buffer, weights[i].sizes(), offsets[i]));
    parts.back().copy_(weights[i]);
  }
  return parts;
}

// Runs _cudnn_rnn under autocast, in place of PyTorch's own kernel
// (aten/src/ATen/cudnn/AutocastRNN.cpp). PyTorch's kernel calls cuDNN, and builds without CUDA do
// not have it. Both kernels use half precision, whatever type the program asks for.
void recurrent_under_autocast(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard without(c10::DispatchKey::AutocastCUDA);
  const std::size_t begin = stack->size() - op.schema().arguments().size();
  const auto argument = [&](std::size_t index) -> c10::IValue& { return (*stack)[begin + index]; };
  const auto number = [&](std::size_t index) {
    return static_cast<std::size_t>(argument(index).toInt());
  };
  const std::vector<Tensor> weights = argument(1).toTensorVector();
  const Tensor given = argument(3).isNone() ? Tensor() : argument(3).toTensor();
  const Tensor& typed = given.defined() ? given : weights[0];
  if (at::autocast::is_eligible(typed, c10::kCUDA) && typed.scalar_type() != at::kHalf) {
    Network net;
    net.input = static_cast<std::size_t>(argument(0).toTensor().size(-1));
    net.mode = argument(6).toInt();
    net.hidden = number(7);
    net.projection = number(8);
    net.layers = number(9);
    net.directions = argument(13).toBool() ? 2 : 1;
    const Tensor buffer = at::empty({static_cast<std::int64_t>(net.weights(true))},
                                    weights[0].options().dtype(at::kHalf).requires_grad(false));
    argument(1) = half_weights(weights, buffer);
    argument(3) = buffer;
  }
  for (const std::size_t index : {0, 4, 5}) {
    if (!argument(index).isTensor()) continue;
    argument(index) = at::autocast::cached_cast(at::kHalf, argument(index).toTensor(), c10::kCUDA);
  }
  op.callBoxed(stack);
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

void add_recurrent_autocast() {
  static auto* const autocast = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::AutocastCUDA, __FILE__, __LINE__);
  autocast->impl("_cudnn_rnn",
                 torch::CppFunction::makeFromBoxedFunction<&recurrent_under_autocast>());
}

}  // namespace plimsoll::simulated
