#include "rules/cudnn_rnn.h"

#include <algorithm>

#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

// The cuDNN algorithm that PyTorch chooses. Layers with few hidden units have kernels of their own.
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

// Returns how many numbers, besides the weights, the workspace for a packed sequence holds. The
// formula is exact for three measured networks:
// - an LSTM without projections,
// - a GRU with one direction and two layers,
// - an LSTM with projections, two directions and three layers.
// The workspace of the GRU was the same for 586 and 604 steps.
std::size_t packed_numbers(const Network& net) {
  constexpr std::size_t kChunk = 128;  // the steps whose gates a GRU keeps at once
  const std::size_t states = net.batch * net.hidden * net.layers * net.directions;
  if (net.mode == kGru && net.directions == 1) {
    return states * net.gates() * (std::min(net.steps, kChunk) + 1);
  }
  const std::size_t width = net.directions == 2 ? 2 * (net.gates() + 3) : net.gates() + 1;
  return net.packed_tokens * width * net.hidden + (net.projection != 0 ? 8 * states : 0);
}

// Returns the bytes of the dropout masks. There is one mask between two layers, with one bit for
// each number. For each step of each sequence, the bits are padded to whole words of 32 bits. A
// packed sequence has bits for its padding too.
std::size_t mask_bytes(const Network& net) {
  if (!net.drops) return 0;
  const std::size_t row = round_up(net.directions * net.hidden, 32) / 8;
  return (net.layers - 1) * round_up(net.steps * net.batch * row, 64);
}

// Returns how many numbers the workspace holds for the backward pass, besides states and weights.
std::size_t backward_numbers(const Network& net, bool is_small) {
  const bool is_two_way = net.directions == 2;
  const bool is_lstm = net.mode == kLstm;
  const bool is_deep = net.layers > 1;
  std::size_t hidden = 0;  // the numbers of all tokens that grow with the hidden units
  if (is_small) {
    const std::size_t halves = 21 + (is_lstm ? 11 : 5 * net.gates()) + (is_two_way ? 12 : 0) +
                               (is_deep ? (is_two_way ? 4 : 2) : 0);
    hidden = net.tokens() * net.hidden * halves / 2;
  } else if (is_two_way) {
    hidden = net.tokens() * net.hidden * (is_deep ? 12 : 10);
  } else {
    const std::size_t chunk = is_deep ? std::min<std::size_t>(net.steps, 16) : net.steps;
    hidden = net.batch * net.hidden * (3 * net.steps + chunk);
  }
  const std::size_t wider = net.input > net.hidden ? net.input - net.hidden : 0;
  const std::size_t cells = is_lstm ? (is_small ? 4 : 1) * net.layers * net.directions : 0;
  return hidden + net.tokens() * (2 * net.input + (is_two_way ? 4 : 1) * wider) +
         cells * net.hidden * net.batch;
}

}  // namespace

std::size_t Network::weights(bool with_biases) const {
  std::size_t count = 0;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const std::size_t in = layer == 0 ? input : output() * directions;
    count += gates() * hidden * (in + output()) + projection * hidden;
    if (with_biases) count += 2 * gates() * hidden;  // cuDNN always keeps two biases
  }
  return count * directions;
}

// The formula is fitted to recordings of cuDNN 9 on compute capability 9.0, and differs from them
// by at most 48 bytes. The recordings cover all modes, one and two layers, one and two directions,
// three number types, and inputs with fewer, as many and more numbers than there are hidden units.
std::size_t workspace_bytes(const Network& net, bool is_forward) {
  constexpr std::size_t kProduct = std::size_t{8} << 20;  // bytes per layer and direction
  const Algorithm kind = algorithm(net, is_forward);
  const bool is_small = kind == Algorithm::small;
  const bool is_two_way = net.directions == 2;
  const bool is_lstm = net.mode == kLstm;
  const std::size_t gates = net.gates();
  const std::size_t tokens = net.tokens();
  const std::size_t cells = net.layers * net.directions;

  if (net.packed_tokens != 0) {
    return kProduct * cells + net.item() * (packed_numbers(net) + net.weights(false)) + 256;
  }

  std::size_t wide = is_two_way ? 2 * (gates + 3) : gates + 1;
  if (is_small) wide += 4 * gates;
  if (net.drops && net.layers > 1) wide += net.directions;
  std::size_t sequences = tokens * (wide * net.hidden + net.input + net.projection);
  // The backward pass may need more than the forward pass. It was not measured with projections,
  // and not for persistent kernels.
  if (net.trains && net.projection == 0 && kind != Algorithm::persistent) {
    sequences = std::max(sequences, backward_numbers(net, is_small));
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

// This formula is fitted to the same recordings as the formula in workspace_bytes, and to the six
// steps of an LSTM with projections, two directions, three layers, dropout and packed sequences.
std::size_t reserve_bytes(const Network& net) {
  const std::size_t each = net.mode == kLstm ? 5 : net.mode == kGru ? 6 : 1;
  const std::size_t tokens = net.tokens();
  std::size_t width = each * net.hidden * net.layers * net.directions;
  if (net.projection != 0) width += (net.hidden + net.projection) * net.layers * net.directions;
  const std::size_t between = (net.layers - 1) * net.hidden * net.directions;
  return net.item() * tokens * (width + between) + mask_bytes(net) + 256;
}

}  // namespace plimsoll::simulated
