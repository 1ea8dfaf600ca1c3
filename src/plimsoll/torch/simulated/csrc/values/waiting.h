// Programs that wait for a value: `while not done.all()`, `while residual > 1e-6`.
//
// On a GPU such a value changes until the program continues. An unknown value would not, and the
// program would wait for ever. If the host reads an unknown value again and again at one place
// while memory does not change, the values that it reads change as in a healthy run: a loss falls,
// a residual shrinks, a condition becomes true. Computed values never change. A program that reads
// along a tensor, or the rest of a list that shrinks, does not wait. Neither does one that draws
// elements anew where a condition is true, while fewer and fewer elements meet it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "values/known.h"

namespace plimsoll::simulated {

// Returns the values that the host reads in place of `values`, the tensor's values at this place of
// the program.
at::Tensor as_in_a_healthy_run(const at::Tensor& tensor, const at::Tensor& values,
                               const Known& known, std::uint32_t operation);

}  // namespace plimsoll::simulated
