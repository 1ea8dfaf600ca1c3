// Recurrent layers that run through cuDNN, and fused recurrent cells.
#include <utility>
#include <vector>

#include "device/tensors.h"
#include "device/virtual.h"
#include "rules/cudnn_rnn.h"
#include "rules/reduction.h"
#include "rules/rules.h"
#include "values/known.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

// Returns the network that a call runs. From argument number `mode` on, the forward and the
// backward pass take the same arguments.
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

// Takes memory for a copy of the input with time as the first dimension, unless the input is
// contiguous in that order.
void turn_input(Call& call, std::size_t mode) {
  const Tensor input = call.tensor(0);
  const Tensor in_time = turns_batch(call, mode) ? input.transpose(0, 1) : input;
  if (!in_time.is_contiguous()) call.temporary(bytes_of(input));
}

Tensor turned(const Call& call, std::size_t mode, const std::vector<std::int64_t>& sizes,
              at::ScalarType type) {
  if (!turns_batch(call, mode)) return meta_empty(sizes, type);
  std::vector<std::int64_t> in_time = sizes;
  std::swap(in_time[0], in_time[1]);
  return meta_empty(in_time, type).transpose(0, 1);
}

void note_work(Call& call, const Network& net, bool is_backward) {
  RecurrentWork work;
  work.layers = static_cast<double>(net.layers);
  work.directions = static_cast<double>(net.directions);
  work.steps = static_cast<double>(net.steps);
  work.batch = static_cast<double>(net.batch);
  work.input = static_cast<double>(net.input);
  work.hidden = static_cast<double>(net.hidden);
  work.gates = static_cast<double>(net.gates());
  work.type = net.type;
  work.allows_tf32 = at::globalContext().allowTF32CuDNN();
  work.is_backward = is_backward;
  call.use(Library::stacks);
  call.note_multiplication(work);
}

// Simulates _cudnn_rnn. The results are (output, hy, cy, reserve, weight_buf).
void recurrent_forward(Call& call) {
  constexpr std::size_t kMode = 6;
  const Network net = network_of(call, kMode);
  note_work(call, net, false);
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

// Sets the gradients of the weights: as views of the buffer, or as separate tensors.
void set_gradients(Call& call, const Tensor& buffer, const std::vector<Tensor>& weights,
                   bool are_views) {
  c10::List<Tensor> gradients;
  std::int64_t offset = 0;
  for (const Tensor& weight : weights) {
    if (!are_views) {
      gradients.push_back(
          make_tensor(meta_empty(weight.sizes(), buffer.scalar_type()), call.device()));
      continue;
    }
    Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(buffer.storage()),
                                                           buffer.key_set(), buffer.dtype());
    view.unsafeGetTensorImpl()->set_sizes_contiguous(weight.sizes());
    view.unsafeGetTensorImpl()->set_storage_offset(offset);
    offset += weight.numel();
    gradients.push_back(view);
  }
  call.set_result(3, gradients);
}

// Simulates _cudnn_rnn_backward. The results are (dx, dhx, dcx, gradients of the weights).
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
    call.set_shape(3, c10::List<Tensor>(std::vector<Tensor>(weights.size())));
    return;
  }
  note_work(call, net, true);
  call.set_shape(0, turned(call, kMode, input.sizes().vec(), net.type));
  call.set_shape(1, meta_empty(hx.sizes(), net.type));
  call.set_shape(2, cx.defined() ? meta_empty(cx.sizes(), net.type) : Tensor());
  // The kernel replaces a missing gradient by zeros, which take memory.
  for (const auto& [given, like] :
       {std::pair{call.tensor(7), output}, {call.tensor(8), hx}, {call.tensor(9), cx}}) {
    if (!given.defined() && like.defined()) call.temporary(bytes_of(like));
  }
  const std::size_t input_bytes = bytes_of(input);
  const bool is_turned =
      !(turns_batch(call, kMode) ? input.transpose(0, 1) : input).is_contiguous();
  std::size_t copy = is_turned ? call.temporary(input_bytes) : 0;
  // The zeros that replace a missing gradient are contiguous with the batch first.
  const Tensor gradient = call.tensor(7).defined() ? call.tensor(7) : meta_contiguous(output);
  const bool copies_gradient =
      !(turns_batch(call, kMode) ? gradient.transpose(0, 1) : gradient).is_contiguous();
  const std::size_t gradient_copy = copies_gradient ? call.temporary(bytes_of(gradient)) : 0;
  for (const std::size_t result : {0, 1, 2}) call.allocate(result);
  const std::size_t workspace = workspace_bytes(net, false);
  call.temporary(workspace);
  call.release_last();
  if (copies_gradient) call.release(gradient_copy);
  if (is_turned) call.release(copy);

  if (!call.argument(kMode + 11).toBoolList().get(3)) {
    call.set_shape(3, c10::List<Tensor>());
    return;
  }
  if (is_turned) copy = call.temporary(input_bytes);
  const auto number = static_cast<std::int64_t>(net.weights(true));
  const std::size_t buffer = call.run([number, type = net.type, device = call.device()] {
    return std::vector{make_tensor(meta_empty({number}, type), device)};
  });
  const std::size_t last = call.temporary(workspace);
  // In cuDNN's buffer there is room for biases even if the layer has none.
  const std::int64_t full = net.projection != 0 ? 5 : 4;
  call.then([buffer, weights, are_views = call.argument(2).toInt() == full](Call& call) {
    set_gradients(call, call.outcome(buffer), weights, are_views);
  });
  call.release(last);
  if (is_turned) call.release(copy);
  call.release(buffer);
}

// Turns a weight into a view of the buffer. The view begins at the buffer's element `offset`. If
// plimsoll has values for the weight, and host memory for their copy, it copies them into the
// buffer. Otherwise it copies nothing, and notes for the view what it knows about the weight.
void move_weight(const Tensor& weight, const Tensor& buffer, std::int64_t offset) {
  const WithContentsScope real;
  const Known known = known_of(weight);
  const Tensor values = known.source != Source::described ? read_values(weight).clone() : Tensor();
  c10::TensorImpl* const impl = weight.unsafeGetTensorImpl();
  const std::vector<std::int64_t> sizes = weight.sizes().vec();
  impl->set_storage_keep_dtype(c10::Storage(buffer.storage()));
  impl->set_sizes_contiguous(sizes);
  impl->set_storage_offset(offset);
  const Tensor moved = values.defined() ? writable_values(weight, true) : Tensor();
  if (!moved.defined()) return note_same(weight, known);
  moved.copy_(values);
  note_values(weight, known.source, known);
}

// Allocates one buffer for all weights and makes each weight a view of it.
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
  call.allocate(0);
  call.then([weights](Call& call) {
    const Tensor buffer = call.results()[0].toTensor();
    std::int64_t offset = 0;
    for (const bool is_bias : {false, true}) {
      for (const Tensor& weight : weights) {
        if ((weight.dim() == 1) != is_bias) continue;
        move_weight(weight, buffer, offset);
        offset += weight.numel();
      }
    }
  });
}

// Allocates one random state per thread, for as many threads as the chip can run simultaneously.
void dropout_state(Call& call) {
  constexpr std::int64_t kBytesPerMultiprocessor = 49152;
  call.set_shape(
      0, meta_empty({kBytesPerMultiprocessor * call.properties().multiprocessors}, at::kByte));
}

void lstm_cell(Call& call) {
  for (const std::size_t result : {2, 0, 1}) call.allocate(result);
}

// Simulates _thnn_fused_lstm_cell_backward_impl(grad_hy, grad_cy, cx, cy, workspace, has_bias). The
// results are the gradients of the gates, of cx, and of the biases. Both biases have the same
// gradient.
void lstm_cell_backward(Call& call) {
  const Tensor of_gates = call.allocate(0);
  call.allocate(1);
  if (call.argument(5).toBool() && of_gates.defined()) allocate_sum(call, 2, of_gates, 0);
}

// Simulates _thnn_fused_gru_cell. The results are (hy, workspace).
void gru_cell(Call& call) {
  const Tensor hx = call.tensor(2);
  call.set_shape(0, meta_contiguous(hx));
  call.set_shape(1, meta_empty({hx.size(0), hx.size(1) * 5}, hx.scalar_type()));
  for (const std::size_t result : {1, 0}) call.allocate(result);
}

// Simulates _thnn_fused_gru_cell_backward. The results are the gradients of the input's gates, of
// the hidden state's gates, of hx, and of both biases.
void gru_cell_backward(Call& call) {
  const Tensor grad = call.tensor(0);
  const at::ScalarType type = grad.scalar_type();
  const std::int64_t gates = grad.size(1) * 3;
  call.set_shape(0, meta_empty({grad.size(0), gates}, type));
  call.set_shape(1, meta_empty({grad.size(0), gates}, type));
  call.set_shape(2, meta_empty(grad.sizes(), type));
  const bool has_bias = call.argument(2).toBool();
  const Tensor bias = has_bias ? meta_empty({gates}, type) : Tensor();
  call.set_shape(3, bias);
  call.set_shape(4, bias);
  const Tensor of_input = call.allocate(0);
  const Tensor of_hidden = call.allocate(1);
  call.allocate(2);
  if (!has_bias) return;
  allocate_sum(call, 3, of_input, 0);
  allocate_sum(call, 4, of_hidden, 0);
}

const RuleTable kRecurrentRules{
    {"_cudnn_rnn", recurrent_forward},
    {"_cudnn_rnn_backward", recurrent_backward},
    {"_cudnn_rnn_flatten_weight", flatten_weight},
    {"_cudnn_init_dropout_state", dropout_state},
    {"_thnn_fused_lstm_cell", lstm_cell},
    {"_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward},
    {"_thnn_fused_gru_cell", gru_cell},
    {"_thnn_fused_gru_cell_backward", gru_cell_backward},
};

}  // namespace
}  // namespace plimsoll::simulated
