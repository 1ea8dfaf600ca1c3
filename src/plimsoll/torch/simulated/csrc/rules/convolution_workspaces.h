// Workspaces of cuDNN's convolutions, which follow no rule that it states: tables of measured ones.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "chips/chip.h"
#include "device/runtime.h"
#include "operation/multiplication.h"

namespace plimsoll::simulated {

// Back: transposed.
enum Kind : std::int32_t { kImages, kImagesBack, kLines, kVolumes, kVolumesBack };

// Bytes of input, weight and output.
using Operands = std::array<double, 3>;

struct Convolution {
  std::int32_t kind = 0, type = 0;
  bool channels_last = false;
  double batch = 1, channels = 1, side = 1, out_channels = 1;
  std::int64_t kernel = 1, stride = 1, groups = 1, dilation = 1;
  Operands bytes{};
  bool has_usual_settings = true;  // those with which the tables were measured
  std::string words;               // all of it: measured_convolutions.h
};

// The plan that cuDNN's heuristics choose first; of all plans that it offers, the one with the
// largest workspace; the fastest one.
enum class Plan : std::uint8_t { first, largest, fastest };

// Settings of torch.backends.cudnn.benchmark.
struct SearchSettings {
  int most_plans = 10;
  bool empties_cache = true;
};
SearchSettings& search_settings();

// The nearest measured convolution decides, and those around it are the ends of a range. There is
// none for a convolution that was measured itself, on such a chip, unless the plan is the fastest:
// that one differs from run to run.
UncertainMemory convolution_workspace(const Convolution& of, Pass pass, Plan plan,
                                      const Chip& chip);

}  // namespace plimsoll::simulated
