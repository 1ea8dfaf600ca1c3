#include "chips/chip.h"

#include <atomic>
#include <string>
#include <utility>

#include "chips/nearest.h"

namespace plimsoll::simulated {
namespace {

constexpr Chip kChips[] = {
#include "chips.inc"
};

std::string text_of(std::int64_t major, std::int64_t minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

}  // namespace

const Chip& chip_of(const DeviceProperties& device) {
  const std::pair<std::int64_t, std::int64_t> capability(device.major, device.minor);
  const auto key = [](const Chip& chip) { return std::pair(chip.major, chip.minor); };
  const Chip& chip = nearest(kChips, capability, key);
  static std::atomic<bool> is_noted = false;
  if (key(chip) != capability && !is_noted.exchange(true)) {
    runtime().assume(
        runtime().name("compute capability " + text_of(device.major, device.minor)),
        "plimsoll assumes the kernels of compute capability " + text_of(chip.major, chip.minor));
  }
  return chip;
}

}  // namespace plimsoll::simulated
