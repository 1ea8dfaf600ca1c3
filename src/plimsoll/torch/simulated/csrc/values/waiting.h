// Programs that wait for a value: `while not done.all()`, `while residual > 1e-6`.
//
// On a GPU such a value changes until the program goes on. An unknown one would not, and the
// program would wait for ever. So where the host reads an unknown value again and again at one
// place, while memory stays as it was, what it reads changes as in a healthy run: a loss falls, a
// residual shrinks, a condition comes true. Values that are computed never change. A program that
// reads on along a tensor, or what is left of a list that grows shorter, does not wait; nor does
// one that draws anew what a condition is true of, while fewer and fewer elements meet it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "values/known.h"

namespace plimsoll::simulated {

// Returns the values that the host reads instead of `values`, which `tensor` has at this place of
// the program.
at::Tensor as_in_a_healthy_run(const at::Tensor& tensor, const at::Tensor& values,
                               const Known& known, std::uint32_t operation);

}  // namespace plimsoll::simulated
