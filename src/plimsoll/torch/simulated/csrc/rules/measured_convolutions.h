// Convolutions in words, and the workspaces measured for exactly these: on the card itself
// (plimsoll measure), or on an H100 (data/cudnn_by_words.csv). Such a measurement has priority over
// the tables of similar convolutions.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

#include "operation/multiplication.h"
#include "rules/convolution_workspaces.h"

namespace plimsoll::simulated {

// Returns everything that cuDNN's choice of a kernel depends on, as "bfloat16 8x64x56x56 by
// 64x64x3x3 stride 1x1 padding 1x1 dilation 1x1 groups 1", with "channels_last" and "transposed"
// after the type if they apply. 1-D convolutions are images of height 1. measuring/convolutions.py
// reads the text.
std::string in_words(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
                     at::IntArrayRef padding, at::IntArrayRef dilation, std::int64_t groups,
                     bool transposed, at::IntArrayRef output_padding, bool channels_last);

// Bytes that one pass of a convolution takes; -1 if not measured. `first` belongs to the plan that
// cuDNN's heuristics choose, `largest` to a search of cudnn.benchmark. `least`, `middle` and `most`
// belong to the plans that several searches found to be the fastest.
struct Workspaces {
  std::int64_t first, largest, least, middle, most;
};

void set_measured_workspaces(c10::DeviceIndex device, const char* words, Pass pass,
                             const Workspaces& bytes);
void forget_measured_workspaces();

// Returns nothing if this plan was not measured. `is_measured_chip`: cuDNN chooses on this card as
// it does on an H100.
std::optional<UncertainMemory> measured_workspace(c10::DeviceIndex device, const std::string& words,
                                                  Pass pass, Plan plan, bool is_measured_chip);

// Notes a convolution that this process ran.
void note_convolution(const std::string& words);
std::string noted_convolutions();  // one convolution a line

}  // namespace plimsoll::simulated
