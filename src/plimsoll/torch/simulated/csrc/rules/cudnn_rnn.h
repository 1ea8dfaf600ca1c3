// A recurrent network, and the memory that cuDNN takes to run it.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>

namespace plimsoll::simulated {

constexpr std::int64_t kLstm = 2;
constexpr std::int64_t kGru = 3;

struct Network {
  std::int64_t mode = 0;  // cuDNN's number: 0 and 1 for RNNs with one gate, 2 for LSTM, 3 for GRU
  std::size_t input = 0;
  std::size_t hidden = 0;
  std::size_t projection = 0;
  std::size_t layers = 1;
  std::size_t directions = 1;
  bool drops = false;
  bool trains = false;
  std::size_t steps = 0;
  std::size_t batch = 0;
  std::size_t packed_tokens =
      0;  // sum of the lengths in a packed sequence; 0 if the input is not packed
  at::ScalarType type = at::kFloat;

  [[nodiscard]] std::size_t gates() const { return mode == kLstm ? 4 : mode == kGru ? 3 : 1; }
  [[nodiscard]] std::size_t output() const { return projection != 0 ? projection : hidden; }
  [[nodiscard]] std::size_t tokens() const {
    return packed_tokens != 0 ? packed_tokens : steps * batch;
  }
  [[nodiscard]] std::size_t item() const { return c10::elementSize(type); }

  // Returns the number of elements in the one buffer that holds all weights.
  [[nodiscard]] std::size_t weights(bool with_biases) const;
};

// Returns the bytes of the workspace for one pass.
std::size_t workspace_bytes(const Network& net, bool is_forward);
// Returns the bytes that the forward pass keeps for the backward pass.
std::size_t reserve_bytes(const Network& net);

// Registers what autocast does with a recurrent layer.
void add_recurrent_autocast();

}  // namespace plimsoll::simulated
