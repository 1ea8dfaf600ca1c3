// Connects PyTorch's recurrent layers to the cuDNN operations. PyTorch calls cuDNN's layers
// through function pointers (stubs), not through the dispatcher.
#include <ATen/Context.h>
#include <ATen/native/RNN.h>
#include <ATen/ops/_cudnn_init_dropout_state.h>
#include <ATen/ops/_cudnn_rnn.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include <map>
#include <mutex>
#include <tuple>

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

// Returns the one buffer of which all weights are views; undefined if the weights have separate
// memory.
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
}  // namespace plimsoll::simulated
