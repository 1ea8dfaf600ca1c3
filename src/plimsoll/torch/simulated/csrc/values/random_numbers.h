// The random numbers that PyTorch's kernels draw on a GPU.
//
// A kernel draws with Philox 4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3;
// 2011). The generator's seed is the key, each thread has a subsequence, and the generator's offset
// says how far all of them are. A program that sets its seed therefore gets the same numbers here,
// except for the last bits of normal ones. Checked against PyTorch 2.11 on an H200.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "operation/call.h"

namespace plimsoll::simulated {

// The state of a generator before a call drew from it.
struct RandomState {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
  bool is_known = false;  // the program chose the seed; otherwise a GPU has another seed each time
};

// Advances the call's generator, as its kernel does.
RandomState take_random_state(const Call& call);

// Writes the kernel's random numbers to the values of its result. Returns false if the kernel is
// not known here.
bool draw_as_a_gpu(const Call& call, const RandomState& state, const at::Tensor& values);

}  // namespace plimsoll::simulated
