// The workspaces of cuDNN's convolutions, from tables of measurements: cuDNN documents no rule.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "chips/chip.h"
#include "device/runtime.h"
#include "operation/multiplication.h"

namespace plimsoll::simulated {

// The kinds of convolutions: over 2-D images, 1-D lines or 3-D volumes; `Back` marks a transposed
// convolution.
enum Kind : std::int32_t { kImages, kImagesBack, kLines, kVolumes, kVolumesBack };

// The bytes of a convolution's input, weight and output.
using Operands = std::array<double, 3>;

struct Convolution {
  std::int32_t kind = 0, type = 0;
  bool channels_last = false;
  double batch = 1, channels = 1, side = 1, out_channels = 1;
  std::int64_t kernel = 1, stride = 1, groups = 1, dilation = 1;
  double tiles = 0;  // squares of 4 by 4 that cover one output image; 0 if it is not an image
  Operands bytes{};
  bool has_usual_settings = true;  // cuDNN has the same settings as in the measurements
  std::string words;  // describes the convolution; made by `in_words` (measured_convolutions.h)
};

// The report prints this text as an assumption. prediction/assumed.py has the same text.
constexpr std::string_view kOtherChip =
    "plimsoll estimates its workspace from an H100's, as no card like this one was measured";

// A plan of cuDNN: the first one that its heuristics choose, the one with the largest workspace, or
// the fastest one.
enum class Plan : std::uint8_t { first, largest, fastest };

// The settings of cudnn.benchmark, under which cuDNN searches for the fastest plan.
struct SearchSettings {
  int most_plans = 10;
  bool empties_cache = true;
};
SearchSettings& search_settings();

// Returns how many squares of 4 by 4 cover an image.
double tiles_of(std::int64_t height, std::int64_t width);

// Returns the workspace of cuDNN's first plan for exactly this convolution on an H200; none if it
// was not measured.
std::optional<UncertainMemory> measured_on_h200(const Convolution& of, Pass pass);

// Estimates a convolution's workspace from the most similar measured convolution. The bounds come
// from several similar convolutions. Both bounds equal the measured size if `of` itself was
// measured on a chip like `chip`, with the same settings of cuDNN. This does not hold for the
// fastest plan, which differs from run to run.
UncertainMemory convolution_workspace(const Convolution& of, Pass pass, Plan plan,
                                      const Chip& chip);

}  // namespace plimsoll::simulated
