// Rules for recurrent layers and cells. Most of their states have bounds, whatever the weights are.
#include <algorithm>
#include <vector>

#include "values/describing/describing.h"

namespace plimsoll::simulated {
namespace {

constexpr std::size_t kInput = 0;
constexpr std::size_t kWeights = 1;
constexpr std::size_t kHidden = 4;
constexpr std::size_t kCell = 5;
constexpr std::size_t kMode = 6;
constexpr std::size_t kProjection = 8;
constexpr std::size_t kBatchFirst = 10;
constexpr std::size_t kBatchSizes = 14;

enum class Mode : std::int64_t { relu, tanh, lstm, gru };  // as cuDNN numbers them

Mode mode_of(const Operands& of) { return static_cast<Mode>(of.call().argument(kMode).toInt()); }

double steps_of(const Operands& of) {
  const std::vector<std::int64_t> running = of.call().argument(kBatchSizes).toIntVector();
  if (!running.empty()) return static_cast<double>(running.size());
  const bool is_turned = of.call().argument(kBatchFirst).toBool();
  return static_cast<double>(of.tensor(kInput).size(is_turned ? 1 : 0));
}

// Describes a state that each step moves towards some number between -1 and 1.
Description mixed_with_tanh(const Description& hidden) {
  return bounded(std::min(hidden.low, -1.0), std::max(hidden.high, 1.0));
}

// Describes a cell state. Each step keeps a part of it, and adds or subtracts at most one.
Description cell_after(const Description& cell, double steps) {
  return bounded(std::min(cell.low, 0.0) - steps, std::max(cell.high, 0.0) + steps);
}

Description state(const Operands& of) {
  const bool is_projected = of.call().argument(kProjection).toInt() != 0;
  switch (mode_of(of)) {
    case Mode::relu: return Description::between(0, kNone);
    case Mode::gru: return mixed_with_tanh(of[kHidden]);
    case Mode::lstm: return is_projected ? Description() : Description::between(-1, 1);
    case Mode::tanh: return Description::between(-1, 1);
  }
  return {};
}
Description cell(const Operands& of) {
  return mode_of(of) == Mode::lstm ? cell_after(of[kCell], steps_of(of)) : Description();
}

// Describes all weights together, since they lie in one buffer.
Description flattened(const Operands& of) {
  Description all;
  double joined = 0;
  for (const at::Tensor& weight : of.call().tensors(0)) {
    const auto count = static_cast<double>(weight.numel());
    all = join(all, known_of(weight).description, joined / (joined + count));
    joined += count;
  }
  return all;
}

Description cell_state(const Operands&) { return Description::between(-1, 1); }
Description next_cell(const Operands& of) { return cell_after(of[2], 1); }
Description next_hidden(const Operands& of) { return mixed_with_tanh(of[2]); }

const DescribeTable kRecurrentDescriptions{
    {"_cudnn_rnn", state, state, cell},
    {"_cudnn_rnn_flatten_weight", flattened},
    {"_thnn_fused_lstm_cell", cell_state, next_cell},
    {"_thnn_fused_gru_cell", next_hidden},
};

}  // namespace
}  // namespace plimsoll::simulated
