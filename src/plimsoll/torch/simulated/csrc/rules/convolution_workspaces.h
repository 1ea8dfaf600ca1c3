// Workspaces of cuDNN's convolutions, which follow no rule that it states: tables of measured ones.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

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
};

// The plan that cuDNN's heuristics choose first; of all plans that it offers, the one with the
// largest workspace; the fastest one.
enum class Plan : std::uint8_t { first, largest, fastest };

std::size_t convolution_workspace(const Convolution& of, Pass pass, Plan plan);

}  // namespace plimsoll::simulated
