// The random numbers that PyTorch's kernels draw on a GPU.
//
// A kernel draws with Philox 4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3;
// 2011). The key is the generator's seed. Each thread has a subsequence, and the generator's offset
// is the position in every subsequence. So a program that sets its seed gets the same numbers in a
// simulation as on a GPU, except for the last bits of normally distributed ones. Checked against
// PyTorch 2.11 on an H200.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "operation/call.h"

namespace plimsoll::simulated {

// The state of a generator before a call drew from it.
struct RandomState {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
  bool is_known = false;  // the program chose the seed; otherwise the seed differs in each GPU run
};

// Advances the call's generator as a GPU's kernel does. Returns the generator's earlier state.
RandomState take_random_state(const Call& call);

// Draws the numbers that a GPU's kernel would draw and writes them to `values`. Returns false if
// the kernel's way of drawing is unknown.
bool draw_as_a_gpu(const Call& call, const RandomState& state, const at::Tensor& values);

}  // namespace plimsoll::simulated
