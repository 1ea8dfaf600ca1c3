// Workspaces of cuDNN's convolutions, from tables of measurements, because cuDNN documents no rule.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "chips/chip.h"
#include "device/runtime.h"
#include "operation/multiplication.h"

namespace plimsoll::simulated {

// Kinds of convolutions; Back means transposed.
enum Kind : std::int32_t { kImages, kImagesBack, kLines, kVolumes, kVolumesBack };

// Bytes of input, weight and output.
using Operands = std::array<double, 3>;

struct Convolution {
  std::int32_t kind = 0, type = 0;
  bool channels_last = false;
  double batch = 1, channels = 1, side = 1, out_channels = 1;
  std::int64_t kernel = 1, stride = 1, groups = 1, dilation = 1;
  Operands bytes{};
  bool has_usual_settings = true;  // the settings with which the tables were measured
  std::string words;               // the convolution in words: measured_convolutions.h
};

// The plan that cuDNN's heuristics choose first, the one with the largest workspace, and the
// fastest one.
enum class Plan : std::uint8_t { first, largest, fastest };

// Settings of torch.backends.cudnn.benchmark.
struct SearchSettings {
  int most_plans = 10;
  bool empties_cache = true;
};
SearchSettings& search_settings();

// Returns the workspace of the nearest measured convolution; its neighbours are the ends of the
// range. A convolution that was itself measured on such a chip has no range, unless the plan is the
// fastest, which differs from run to run.
UncertainMemory convolution_workspace(const Convolution& of, Pass pass, Plan plan,
                                      const Chip& chip);

}  // namespace plimsoll::simulated
