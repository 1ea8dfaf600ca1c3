// Programs that loop until a value changes: `while not done.all()`, `while residual > 1e-6`.
//
// On a GPU such a value changes at some point and the program continues. In a simulation an unknown
// value would stay the same, and the program would loop for ever. So if the host reads an unknown
// value again and again at one place while memory does not change, plimsoll returns values as in a
// healthy run: a loss falls, a residual shrinks, a condition becomes true. Values that plimsoll has
// computed never change in this way. Two kinds of loops do not count as waiting. The first kind
// reads further along a tensor at each step, or reads a list that gets shorter. The second kind is
// a rejection loop. Each round draws new random values for the elements that meet a condition.
// After each round, fewer elements meet the condition.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "values/known.h"

namespace plimsoll::simulated {

// Returns the values that the host gets when it reads a tensor. At first these are `values`, the
// tensor's contents. After many reads at the same place of the program, the function returns other
// values, for which a program might wait.
at::Tensor as_in_a_healthy_run(const at::Tensor& tensor, const at::Tensor& values,
                               const Known& known, std::uint32_t operation);

}  // namespace plimsoll::simulated
