// PYTORCH_CUDA_ALLOC_CONF, parsed by the rules of a given PyTorch version.
//
// The keys and their bounds come from PyTorch's c10/core/AllocatorConfig and
// c10/cuda/CUDAAllocatorConfig; settings.inc lists the keys. PyTorch ignores trailing garbage,
// stray commas and reserves that are no numbers; this parser reports them as errors. PyTorch
// therefore accepts every configuration that this parser accepts.
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

  // The text that parses to this configuration: the given text, unless `with` made the
  // configuration.
  std::string text;
  // Keys that PyTorch accepts but that change no device memory, in order, each with the reason.
  std::vector<std::pair<std::string, std::string>> without_effect;

  // Throws ConfigError with one line that names the key, the fault and the allowed values.
  [[nodiscard]] static AllocatorConfig parse(std::string_view text, TorchVersion version = {});
  // Returns this configuration after the program makes `settings`, as
  // torch.cuda.memory._set_allocator_settings does. Where `settings` does not name them,
  // max_split_size_mb, roundup_power2_divisions and garbage_collection_threshold return to their
  // defaults, and from 2.11 on max_non_split_rounding_mb returns to the size of large segments; all
  // other keys keep their values (AcceleratorAllocatorConfig::parseArgs). Throws like `parse`.
  [[nodiscard]] AllocatorConfig with(std::string_view settings, TorchVersion version = {}) const;

  // Returns the size of the block that a request of `size` > 0 bytes gets if a free block can be
  // split.
  [[nodiscard]] Bytes round_request(Bytes size) const;
  // Returns the size of the segment that the allocator requests from the driver for a block of
  // `rounded` bytes.
  [[nodiscard]] Bytes segment_size(Bytes rounded) const;
  // Returns the address space that an expandable segment reserves on a device with this much
  // memory, before rounding up to pages: 9/8 of the memory, unless the configuration asks for less.
  [[nodiscard]] Bytes expandable_size(Bytes device_memory) const;

  static constexpr Bytes kMinBlock = 512;
  static constexpr Bytes kSmallRequest = kMiB;  // the largest request that small pools serve
  static constexpr Bytes kSmallSegment = 2 * kMiB;
  static constexpr Bytes kLargeRequest = 10 * kMiB;  // from this size on a segment fits its request
  static constexpr Bytes kSegmentMultiple = 2 * kMiB;

 private:
  [[nodiscard]] Bytes divisions_for(Bytes size) const;
};

// Returns the most that may be reserved of a device with this much memory, as
// torch.cuda.set_per_process_memory_fraction sets it; a fraction of 1 is no limit.
[[nodiscard]] std::optional<Bytes> limit_of(double fraction, Bytes device_memory,
                                            TorchVersion version);

}  // namespace plimsoll
