// Recurrent layers and cells on the host. They compute what cuDNN and PyTorch's fused kernels
// compute on a GPU.
#pragma once

#include <ATen/core/stack.h>

#include "operation/call.h"

namespace plimsoll::simulated {

// Each function pops the call's arguments, which are host tensors, and pushes the results.
void run_recurrent(const Call& call, torch::jit::Stack& stack);
void run_recurrent_back(const Call& call, torch::jit::Stack& stack);
void flatten_recurrent_weights(const Call& call, torch::jit::Stack& stack);
void run_lstm_cell(const Call& call, torch::jit::Stack& stack);
void run_lstm_cell_back(const Call& call, torch::jit::Stack& stack);
void run_gru_cell(const Call& call, torch::jit::Stack& stack);
void run_gru_cell_back(const Call& call, torch::jit::Stack& stack);

}  // namespace plimsoll::simulated
