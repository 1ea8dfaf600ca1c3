// Convolutions in words, and the workspaces that were measured for exactly these: on the card
// itself (plimsoll measure), or else on an H100 (data/cudnn_by_words.csv). Such a measurement goes
// before the tables in which like convolutions are sought.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

#include "operation/multiplication.h"
#include "rules/convolution_workspaces.h"

namespace plimsoll::simulated {

// All that cuDNN's choice of a kernel depends on, as "bfloat16 8x64x56x56 by 64x64x3x3 stride 1x1
// padding 1x1 dilation 1x1 groups 1", with "channels_last" and "transposed" after the type where
// it is so. Those of lines are images of height 1. measuring/convolutions.py reads it.
std::string in_words(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
                     at::IntArrayRef padding, at::IntArrayRef dilation, std::int64_t groups,
                     bool transposed, at::IntArrayRef output_padding, bool channels_last);

// Bytes that one pass of a convolution takes; -1 for what was not measured. `first` is of the plan
// that cuDNN's heuristics choose, `largest` of a search of cudnn.benchmark. `least`, `middle` and
// `most` are of the plans that several searches found to be the fastest.
struct Workspaces {
  std::int64_t first, largest, least, middle, most;
};

void set_measured_workspaces(c10::DeviceIndex device, const char* words, Pass pass,
                             const Workspaces& bytes);
void forget_measured_workspaces();

// Nothing where this plan was not measured. `is_measured_chip`: whether cuDNN chooses on this card
// as it does on an H100.
std::optional<UncertainMemory> measured_workspace(c10::DeviceIndex device, const std::string& words,
                                                  Pass pass, Plan plan, bool is_measured_chip);

// The convolutions that this process ran.
void note_convolution(const std::string& words);
std::string noted_convolutions();  // a line each

}  // namespace plimsoll::simulated
