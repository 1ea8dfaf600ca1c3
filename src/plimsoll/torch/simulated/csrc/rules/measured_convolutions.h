// Workspaces that were measured for exactly the requested convolution. `plimsoll measure` measured
// them on the user's card, or they come from an H100 (data/cudnn_by_words.csv). A rule uses them
// before it estimates a workspace from similar convolutions. A text that describes the
// convolution is the key to its workspaces.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

#include "operation/multiplication.h"
#include "rules/convolution_workspaces.h"

namespace plimsoll::simulated {

// Returns a text that names everything on which cuDNN's choice of a kernel depends: "bfloat16
// 8x64x56x56 by 64x64x3x3 stride 1x1 padding 1x1 dilation 1x1 groups 1", with "channels_last" and
// "transposed" after the type if they apply. A 1-D convolution is written as one over images of
// height 1. measuring/convolutions.py parses the text.
std::string in_words(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
                     at::IntArrayRef padding, at::IntArrayRef dilation, std::int64_t groups,
                     bool transposed, at::IntArrayRef output_padding, bool channels_last);

// Workspaces of one pass of a convolution, in bytes; -1 where they were not measured. `first` is
// the workspace of the plan that cuDNN's heuristics choose. The other values come from three
// searches by cudnn.benchmark. `largest` is the most memory that a search took. Each search chose
// a fastest plan: `least`, `middle` and `most` are the smallest, the median and the largest
// workspace of these three plans.
struct Workspaces {
  std::int64_t first, largest, least, middle, most;
};

void set_measured_workspaces(c10::DeviceIndex device, const char* words, Pass pass,
                             const Workspaces& bytes);
void forget_measured_workspaces();

// Return the workspace that a plan took on the user's card, or on an H100; none if it was not
// measured there.
std::optional<UncertainMemory> measured_on_card(c10::DeviceIndex device, const std::string& words,
                                                Pass pass, Plan plan);
std::optional<UncertainMemory> measured_on_h100(const std::string& words, Pass pass, Plan plan);

// Remembers that this process ran a convolution.
void note_convolution(const std::string& words);
std::string noted_convolutions();  // one description per line

}  // namespace plimsoll::simulated
