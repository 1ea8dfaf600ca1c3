#include "values/recurrent_on_host.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "values/host_call.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

enum class Mode : std::uint8_t { relu, tanh, lstm, gru };  // as cuDNN numbers them

Tensor plus(const Tensor& one, const Tensor& other) {
  return !one.defined() ? other : !other.defined() ? one : one.add(other);
}

// --- one step ------------------------------------------------------------------------------------

// The states and gates of a time step. The step's backward pass needs them.
struct CellStep {
  Tensor hidden;  // hidden state before the step
  Tensor cell;    // LSTM: cell state before the step
  // For an LSTM: the gates input, forget, cell and output. For a GRU: the gates reset, update and
  // new, and the product of the hidden state with the weights of `new`. A network with relu or
  // tanh has only the new hidden state here.
  std::array<Tensor, 4> gates;
  Tensor next_hidden;  // before the projection
  Tensor next_cell;
};

// Computes a time step. `of_input` and `of_hidden` are the products of the input and of the hidden
// state with their weights, biases included.
CellStep step(Mode mode, const Tensor& of_input, const Tensor& of_hidden, const Tensor& hidden,
              const Tensor& cell) {
  CellStep made{hidden, cell, {}, {}, {}};
  auto& gates = made.gates;
  if (mode == Mode::lstm) {
    const auto parts = of_input.add(of_hidden).chunk(4, 1);
    gates = {parts[0].sigmoid(), parts[1].sigmoid(), parts[2].tanh(), parts[3].sigmoid()};
    made.next_cell = gates[1].mul(cell).add(gates[0].mul(gates[2]));
    made.next_hidden = gates[3].mul(made.next_cell.tanh());
  } else if (mode == Mode::gru) {
    const auto in = of_input.chunk(3, 1);
    const auto hid = of_hidden.chunk(3, 1);
    gates[0] = in[0].add(hid[0]).sigmoid();
    gates[1] = in[1].add(hid[1]).sigmoid();
    gates[3] = hid[2];
    gates[2] = in[2].add(gates[0].mul(gates[3])).tanh();
    made.next_hidden = gates[2].add(gates[1].mul(hidden.sub(gates[2])));
  } else {
    const Tensor sum = of_input.add(of_hidden);
    made.next_hidden = gates[0] = mode == Mode::relu ? sum.relu() : sum.tanh();
  }
  return made;
}

struct StepGradients {
  // The gradients of the arguments `of_input` and `of_hidden` of step().
  Tensor of_input;
  Tensor of_hidden;
  // The gradient that reaches the argument `hidden` of step() directly, not through `of_hidden`.
  Tensor hidden;
  Tensor cell;
};

Tensor through_sigmoid(const Tensor& gradient, const Tensor& y) {
  return gradient.mul(y).mul(at::rsub(y, 1));
}
Tensor through_tanh(const Tensor& gradient, const Tensor& y) {
  return gradient.mul(at::rsub(y.square(), 1));
}

StepGradients step_back(Mode mode, const CellStep& of, const Tensor& hidden, const Tensor& cell) {
  const auto& gates = of.gates;
  if (mode == Mode::lstm) {
    const Tensor bent = of.next_cell.tanh();
    const Tensor of_cell = plus(through_tanh(hidden.mul(gates[3]), bent), cell);
    const Tensor all = at::cat({through_sigmoid(of_cell.mul(gates[2]), gates[0]),
                                through_sigmoid(of_cell.mul(of.cell), gates[1]),
                                through_tanh(of_cell.mul(gates[0]), gates[2]),
                                through_sigmoid(hidden.mul(bent), gates[3])},
                               1);
    return {all, all, {}, of_cell.mul(gates[1])};
  }
  if (mode == Mode::gru) {
    const Tensor update = through_sigmoid(hidden.mul(of.hidden.sub(gates[2])), gates[1]);
    const Tensor next = through_tanh(hidden.mul(at::rsub(gates[1], 1)), gates[2]);
    const Tensor reset = through_sigmoid(next.mul(gates[3]), gates[0]);
    return {at::cat({reset, update, next}, 1),
            at::cat({reset, update, next.mul(gates[0])}, 1),
            hidden.mul(gates[1]),
            {}};
  }
  const Tensor all =
      mode == Mode::relu ? hidden.mul(gates[0].gt(0)) : through_tanh(hidden, gates[0]);
  return {all, all, {}, {}};
}

// --- one layer in one direction ------------------------------------------------------------------

// The weights of a layer, in the order PyTorch passes them.
struct Weights {
  Tensor input, hidden;            // the matrices
  Tensor input_bias, hidden_bias;  // undefined if the layer has none
  Tensor projection;
};

Tensor product(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return plus(x.matmul(weight.t()), bias);
}

// Describes a batch of sequences, the longest first. `running[i]` is the number of sequences that
// reach time step `i`. A tensor for the batch has a row for each time step of each sequence: first
// the rows of step 0, then the rows of step 1, and so on.
struct Sequences {
  std::vector<std::int64_t> running;

  // Returns the rows of time step `i`.
  [[nodiscard]] Tensor rows(const Tensor& of, std::size_t i) const {
    std::int64_t before = 0;
    for (std::size_t j = 0; j < i; ++j) before += running[j];
    return of.narrow(0, before, running[i]);
  }
};

// Returns the states of all sequences, or the gradients of the states, after a time step was
// computed. `first` has the new rows of the sequences that are long enough to have this step. The
// shorter sequences keep their rows of `all`.
Tensor gone_on(const Tensor& first, const Tensor& all) {
  return first.size(0) == all.size(0)
             ? first
             : at::cat({first, all.narrow(0, first.size(0), all.size(0) - first.size(0))});
}

struct Layer {
  Mode mode;
  Weights weights;
  bool is_reversed;
  Tensor input;
  std::vector<CellStep> steps;  // one per time step
  Tensor output, hidden, cell;

  void run(const Sequences& over, const Tensor& hidden_before, const Tensor& cell_before) {
    hidden = hidden_before;
    cell = cell_before;
    const Tensor of_input = product(input, weights.input, weights.input_bias);
    const std::size_t count = over.running.size();
    steps.resize(count);
    std::vector<Tensor> outputs(count);
    for (std::size_t n = 0; n < count; ++n) {
      const std::size_t i = is_reversed ? count - 1 - n : n;
      const Tensor before = hidden.narrow(0, 0, over.running[i]);
      steps[i] =
          step(mode, over.rows(of_input, i), product(before, weights.hidden, weights.hidden_bias),
               before, cell.defined() ? cell.narrow(0, 0, over.running[i]) : Tensor());
      outputs[i] = weights.projection.defined()
                       ? steps[i].next_hidden.matmul(weights.projection.t())
                       : steps[i].next_hidden;
      hidden = gone_on(outputs[i], hidden);
      if (cell.defined()) cell = gone_on(steps[i].next_cell, cell);
    }
    output = at::cat(outputs);
  }

  // Computes the gradients of the input, of the states before the first time step, and of the
  // weights. Computes them from the gradients of the output and of the states after the last step.
  std::tuple<Tensor, Tensor, Tensor, Weights> run_back(const Sequences& over,
                                                       const Tensor& of_output, Tensor of_hidden,
                                                       Tensor of_cell) const {
    const std::size_t count = over.running.size();
    std::vector<Tensor> of_products(count);
    Weights of_weights;
    for (std::size_t n = 0; n < count; ++n) {
      const std::size_t i = is_reversed ? n : count - 1 - n;
      const std::int64_t rows = over.running[i];
      Tensor gradient = over.rows(of_output, i).add(of_hidden.narrow(0, 0, rows));
      if (weights.projection.defined()) {
        of_weights.projection =
            plus(of_weights.projection, gradient.t().matmul(steps[i].next_hidden));
        gradient = gradient.matmul(weights.projection);
      }
      const StepGradients made = step_back(
          mode, steps[i], gradient, of_cell.defined() ? of_cell.narrow(0, 0, rows) : Tensor());
      of_products[i] = made.of_input;
      of_weights.hidden = plus(of_weights.hidden, made.of_hidden.t().matmul(steps[i].hidden));
      of_weights.hidden_bias = plus(of_weights.hidden_bias, made.of_hidden.sum(0));
      of_hidden = gone_on(plus(made.of_hidden.matmul(weights.hidden), made.hidden), of_hidden);
      if (of_cell.defined()) of_cell = gone_on(made.cell, of_cell);
    }
    const Tensor all = at::cat(of_products);
    of_weights.input = all.t().matmul(input);
    of_weights.input_bias = all.sum(0);
    return {all.matmul(weights.input), of_hidden, of_cell, of_weights};
  }
};

// --- the network ---------------------------------------------------------------------------------

// A recurrent network that runs its layers one after the other, each in one or both directions.
struct HostNetwork {
  Mode mode;
  bool is_turned;                   // batch_first
  std::vector<std::int64_t> sizes;  // of the input, with time as the first dimension
  std::size_t directions;
  std::size_t per_layer;  // weights per layer
  bool has_biases, projects;
  at::ScalarType type;
  Sequences over;
  std::vector<Layer> layers;  // a layer's two directions are adjacent
  Tensor output, hidden, cell;

  explicit HostNetwork(const Named& of) {
    const double dropout = of["dropout"].toDouble();
    const std::int64_t depth = of["num_layers"].toInt();
    TORCH_CHECK(dropout == 0 || depth == 1 || !of["train"].toBool(),
                "what is dropped is known to the GPU alone");
    mode = static_cast<Mode>(of["mode"].toInt());
    directions = of["bidirectional"].toBool() ? 2 : 1;
    per_layer = static_cast<std::size_t>(of["weight_stride0"].toInt());
    projects = of["proj_size"].toInt() != 0;
    has_biases = per_layer >= 4;
    const Tensor input = of.tensor("input");
    type = input.scalar_type();
    over.running = of["batch_sizes"].toIntVector();
    is_turned = over.running.empty() && of["batch_first"].toBool();
    Tensor x = is_turned ? input.transpose(0, 1) : input;
    sizes = x.sizes().vec();
    if (over.running.empty()) {
      over.running.assign(static_cast<std::size_t>(x.size(0)), x.size(1));
    }
    x = widened(x).reshape({-1, x.size(-1)});
    const Tensor hx = widened(of.tensor("hx"));
    const Tensor cx = widened(of.tensor("cx"));
    const std::vector<Tensor> weights = of["weight"].toTensorVector();
    std::vector<Tensor> last_hidden;
    std::vector<Tensor> last_cell;
    for (std::size_t layer = 0; layer < static_cast<std::size_t>(depth); ++layer) {
      std::vector<Tensor> outputs;
      for (std::size_t direction = 0; direction < directions; ++direction) {
        const auto place = static_cast<std::int64_t>(layers.size());
        Layer& made = layers.emplace_back(
            Layer{mode, weights_at(weights, layers.size()), direction == 1, x, {}, {}, {}, {}});
        made.run(over, hx[place], cx.defined() ? cx[place] : Tensor());
        outputs.push_back(made.output);
        last_hidden.push_back(made.hidden);
        last_cell.push_back(made.cell);
      }
      x = at::cat(outputs, 1);
    }
    output = x;
    hidden = at::stack(last_hidden);
    if (cx.defined()) cell = at::stack(last_cell);
  }

  [[nodiscard]] Weights weights_at(const std::vector<Tensor>& all, std::size_t place) const {
    const auto at = [&](std::size_t i) { return widened(all.at(place * per_layer + i)); };
    return {at(0), at(1), has_biases ? at(2) : Tensor(), has_biases ? at(3) : Tensor(),
            projects ? at(per_layer - 1) : Tensor()};
  }

  // Returns rows in the layout of the program's input (batch_first or not) and in its number type.
  [[nodiscard]] Tensor as_sequence(const Tensor& rows) const {
    std::vector<std::int64_t> made = sizes;
    made.back() = rows.size(-1);
    const Tensor shaped = rows.reshape(made).to(type);
    return is_turned ? shaped.transpose(0, 1) : shaped;
  }
  [[nodiscard]] Tensor typed(const Tensor& tensor) const {
    return tensor.defined() ? tensor.to(type) : tensor;
  }
};

Tensor or_zeros(const Tensor& gradient, const Tensor& like) {
  if (!like.defined()) return {};
  return gradient.defined() ? widened(gradient) : at::zeros_like(like);
}

// Returns the single buffer in which cuDNN keeps all weights, followed by all biases. The buffer
// has room for biases even if the layers have none.
Tensor flat(const std::vector<Tensor>& weights, const Tensor& like) {
  const Tensor made =
      at::zeros({like.numel()}, at::TensorOptions().dtype(weights.at(0).scalar_type()));
  std::int64_t before = 0;
  for (const bool are_biases : {false, true}) {
    for (const Tensor& weight : weights) {
      if ((weight.dim() == 1) != are_biases) continue;
      made.narrow(0, before, weight.numel()).copy_(weight.reshape({-1}));
      before += weight.numel();
    }
  }
  return made;
}

}  // namespace

// Computes _cudnn_rnn. The results are (output, hy, cy, reserve, weight_buf).
void run_recurrent(const Call& call, torch::jit::Stack& stack) {
  const Named of(call, take(stack));
  const HostNetwork net(of);
  // Only cuDNN would read this memory, in its backward pass; it stays zero.
  const Tensor reserve =
      at::zeros(call.results()[3].toTensor().sizes(), at::TensorOptions().dtype(at::kByte));
  const bool are_flat = of.tensor("weight_buf").defined();  // the weights are in one buffer already
  const Tensor weights =
      are_flat ? Tensor() : flat(of["weight"].toTensorVector(), call.results()[4].toTensor());
  stack.insert(stack.end(), {net.as_sequence(net.output), net.typed(net.hidden),
                             net.typed(net.cell), reserve, weights});
}

// Computes _cudnn_rnn_backward. The results are (dx, dhx, dcx, gradients of the weights).
void run_recurrent_back(const Call& call, torch::jit::Stack& stack) {
  const Named of(call, take(stack));
  HostNetwork net(of);
  Tensor gradient = of.tensor("grad_output");
  if (gradient.defined()) {
    if (net.is_turned) gradient = gradient.transpose(0, 1);
    gradient = gradient.reshape({-1, gradient.size(-1)});
  }
  Tensor of_x = or_zeros(gradient, net.output);
  const Tensor of_hy = or_zeros(of.tensor("grad_hy"), net.hidden);
  const Tensor of_cy = or_zeros(of.tensor("grad_cy"), net.cell);
  std::vector<Tensor> of_hidden(net.layers.size());
  std::vector<Tensor> of_cell(net.layers.size());
  std::vector<Tensor> of_weights(net.layers.size() * net.per_layer);
  for (std::size_t first = net.layers.size(); first != 0;) {
    first -= net.directions;
    const auto parts = of_x.chunk(static_cast<std::int64_t>(net.directions), 1);
    of_x = Tensor();
    for (std::size_t i = 0; i < net.directions; ++i) {
      const std::size_t place = first + i;
      const auto row = static_cast<std::int64_t>(place);
      auto [input, hidden, cell, weights] = net.layers[place].run_back(
          net.over, parts[i], of_hy[row], of_cy.defined() ? of_cy[row] : Tensor());
      of_x = plus(of_x, input);
      of_hidden[place] = hidden;
      of_cell[place] = cell;
      std::vector<Tensor> in_order{weights.input, weights.hidden};
      if (net.has_biases)
        in_order.insert(in_order.end(), {weights.input_bias, weights.hidden_bias});
      if (net.projects) in_order.push_back(weights.projection);
      std::transform(in_order.begin(), in_order.end(),
                     of_weights.begin() + static_cast<std::ptrdiff_t>(place * net.per_layer),
                     [&](const Tensor& each) { return net.typed(each); });
    }
  }
  stack.insert(stack.end(), {net.as_sequence(of_x), net.typed(at::stack(of_hidden)),
                             net.cell.defined() ? net.typed(at::stack(of_cell)) : Tensor()});
  stack.emplace_back(c10::List<Tensor>(of_weights));
}

void flatten_recurrent_weights(const Call& call, torch::jit::Stack& stack) {
  const Named of(call, take(stack));
  stack.emplace_back(flat(of["weight_arr"].toTensorVector(), call.results().at(0).toTensor()));
}

// --- fused cells ---------------------------------------------------------------------------------

// Computes _thnn_fused_lstm_cell. The results are (hy, cy, workspace).
void run_lstm_cell(const Call& call, torch::jit::Stack& stack) {
  const Named of(call, take(stack));
  const Tensor cell = of.tensor("cx");
  const CellStep made =
      step(Mode::lstm, plus(widened(of.tensor("input_gates")), widened(of.tensor("input_bias"))),
           plus(widened(of.tensor("hidden_gates")), widened(of.tensor("hidden_bias"))), {},
           widened(cell));
  const at::ScalarType type = cell.scalar_type();
  stack.insert(stack.end(),
               {made.next_hidden.to(type), made.next_cell.to(type),
                at::cat({made.gates[0], made.gates[1], made.gates[2], made.gates[3]}, 1).to(type)});
}

// Computes _thnn_fused_lstm_cell_backward_impl. The results are the gradients of the gates, of cx,
// and of the bias.
void run_lstm_cell_back(const Call& call, torch::jit::Stack& stack) {
  const Named of(call, take(stack));
  const Tensor cell = of.tensor("cx");
  const auto parts = widened(of.tensor("workspace")).chunk(4, 1);
  const CellStep made{
      {}, widened(cell), {parts[0], parts[1], parts[2], parts[3]}, {}, widened(of.tensor("cy"))};
  const StepGradients found = step_back(Mode::lstm, made, or_zeros(of.tensor("grad_hy"), made.cell),
                                        or_zeros(of.tensor("grad_cy"), made.cell));
  const at::ScalarType type = cell.scalar_type();
  stack.insert(stack.end(), {found.of_input.to(type), found.cell.to(type),
                             of["has_bias"].toBool() ? found.of_input.sum(0).to(type) : Tensor()});
}

// Computes _thnn_fused_gru_cell. The results are (hy, workspace). The workspace holds the gates
// (reset, update, new), the hidden state before the step, and the product of this state with the
// weights of `new`.
void run_gru_cell(const Call& call, torch::jit::Stack& stack) {
  const Named of(call, take(stack));
  const Tensor hidden = of.tensor("hx");
  const CellStep made =
      step(Mode::gru, plus(widened(of.tensor("input_gates")), widened(of.tensor("input_bias"))),
           plus(widened(of.tensor("hidden_gates")), widened(of.tensor("hidden_bias"))),
           widened(hidden), {});
  const at::ScalarType type = hidden.scalar_type();
  stack.insert(
      stack.end(),
      {made.next_hidden.to(type),
       at::cat({made.gates[0], made.gates[1], made.gates[2], made.hidden, made.gates[3]}, 1)
           .to(type)});
}

// Computes _thnn_fused_gru_cell_backward. The results are the gradients of the input's gates, of
// the hidden state's gates, of hx, and of both biases.
void run_gru_cell_back(const Call& call, torch::jit::Stack& stack) {
  const Named of(call, take(stack));
  const Tensor gradient = of.tensor("grad_hy");
  const auto parts = widened(of.tensor("workspace")).chunk(5, 1);
  const CellStep made{parts[3], {}, {parts[0], parts[1], parts[2], parts[4]}, {}, {}};
  const StepGradients found = step_back(Mode::gru, made, widened(gradient), {});
  const at::ScalarType type = gradient.scalar_type();
  const bool has_bias = of["has_bias"].toBool();
  stack.insert(stack.end(),
               {found.of_input.to(type), found.of_hidden.to(type), found.hidden.to(type),
                has_bias ? found.of_input.sum(0).to(type) : Tensor(),
                has_bias ? found.of_hidden.sum(0).to(type) : Tensor()});
}

}  // namespace plimsoll::simulated
