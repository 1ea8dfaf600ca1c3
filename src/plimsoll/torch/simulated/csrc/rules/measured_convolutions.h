// Convolutions in words, and the workspaces that were measured for them on the card itself
// (plimsoll measure). Such a measurement goes before every table of convolutions.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "operation/multiplication.h"

namespace plimsoll::simulated {

// All that cuDNN's choice of a kernel depends on, as "bfloat16 8x64x56x56 by 64x64x3x3 stride 1x1
// padding 1x1 dilation 1x1 groups 1", with "channels_last" and "transposed" after the type where
// it is so. Those of lines are images of height 1. measuring/convolutions.py reads it.
std::string in_words(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
                     at::IntArrayRef padding, at::IntArrayRef dilation, std::int64_t groups,
                     bool transposed, at::IntArrayRef output_padding, bool channels_last);

// Bytes of the forward pass, and of the gradients of input and weight.
using Workspaces = std::array<std::int64_t, 3>;

void set_measured_workspaces(c10::DeviceIndex device, const char* words, const Workspaces& bytes);
void forget_measured_workspaces();
std::optional<std::uint64_t> measured_workspace(c10::DeviceIndex device, const std::string& words,
                                                Pass pass);

// The convolutions that this process ran.
void note_convolution(const std::string& words);
std::string noted_convolutions();  // a line each

}  // namespace plimsoll::simulated
