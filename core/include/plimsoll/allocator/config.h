// PYTORCH_CUDA_ALLOC_CONF, parsed by PyTorch's rules for a stated version.
//
// Source of the keys and their bounds: c10/core/AllocatorConfig and c10/cuda/CUDAAllocatorConfig
// of PyTorch; settings.inc lists the keys. Where PyTorch would ignore trailing garbage, a stray
// comma or a reserve that is none, this parser says what is wrong instead: a configuration that is
// accepted here is accepted there.
#pragma once

#include <array>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "plimsoll/base/units.h"
#include "plimsoll/torch_versions.h"

namespace plimsoll {

class ConfigError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

struct AllocatorConfig {
  static constexpr Bytes kUnlimited = std::numeric_limits<Bytes>::max();
  static constexpr std::size_t kRoundupIntervals = 16;  // 1 MiB, 2 MiB, … 32 GiB and more

  using Divisions = std::array<Bytes, kRoundupIntervals>;
  // The address space of an expandable segment: a fraction of the device's memory, or bytes.
  using Reserve = std::optional<std::variant<double, Bytes>>;

#define PLIMSOLL_SETTING(key, type, field, initial, reader, major, minor) type field = initial;
#include "plimsoll/allocator/settings.inc"

  std::string text;  // makes this configuration on its own; as given, unless `with` made it
  // Keys that PyTorch accepts but that change no device memory, in order, each with why.
  std::vector<std::pair<std::string, std::string>> without_effect;

  // Throws ConfigError with one line that names the key, what is wrong and what is allowed.
  [[nodiscard]] static AllocatorConfig parse(std::string_view text, TorchVersion version = {});
  // This configuration after the program makes `settings`, as
  // torch.cuda.memory._set_allocator_settings does. max_split_size_mb, roundup_power2_divisions and
  // garbage_collection_threshold fall back to their defaults where they are not named, from 2.11 on
  // max_non_split_rounding_mb to the size of large segments; all other keys keep their values
  // (AcceleratorAllocatorConfig::parseArgs). Throws as `parse`.
  [[nodiscard]] AllocatorConfig with(std::string_view settings, TorchVersion version = {}) const;

  // The size of the block that a request of `size` > 0 bytes gets, if a free block can be split.
  [[nodiscard]] Bytes round_request(Bytes size) const;
  // What the driver is asked for, for a block of `rounded` bytes.
  [[nodiscard]] Bytes segment_size(Bytes rounded) const;
  // The address space of an expandable segment on a device with this much memory, before it is
  // rounded up to pages: 9/8 of it, unless less is to be reserved.
  [[nodiscard]] Bytes expandable_size(Bytes device_memory) const;

  static constexpr Bytes kMinBlock = 512;
  static constexpr Bytes kSmallRequest = kMiB;  // the largest that small pools serve
  static constexpr Bytes kSmallSegment = 2 * kMiB;
  static constexpr Bytes kLargeRequest = 10 * kMiB;  // from here on a segment fits its request
  static constexpr Bytes kSegmentMultiple = 2 * kMiB;

 private:
  [[nodiscard]] Bytes divisions_for(Bytes size) const;
};

// The most that may be reserved of a device with so much memory, as
// torch.cuda.set_per_process_memory_fraction says it; a fraction of 1 is no limit.
[[nodiscard]] std::optional<Bytes> limit_of(double fraction, Bytes device_memory,
                                            TorchVersion version);

}  // namespace plimsoll
