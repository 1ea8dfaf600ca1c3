// PYTORCH_CUDA_ALLOC_CONF, parsed by the rules of a given PyTorch version.
//
// The keys and their bounds come from PyTorch's c10/core/AllocatorConfig and
// c10/cuda/CUDAAllocatorConfig. settings.inc lists the keys. PyTorch ignores trailing garbage,
// stray commas, and values of expandable_segments_reserve that are not numbers. This parser reports
// all of these as errors. PyTorch therefore accepts every configuration that this parser accepts.
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
  // Request sizes fall into intervals that begin at 1 MiB, 2 MiB, 4 MiB, … 32 GiB. The first
  // interval also has all smaller sizes.
  static constexpr std::size_t kRoundupIntervals = 16;

  using Divisions = std::array<Bytes, kRoundupIntervals>;
  // The address space of an expandable segment: a fraction of the device's memory, or bytes.
  using Reserve = std::optional<std::variant<double, Bytes>>;

#define PLIMSOLL_SETTING(key, type, field, initial, reader, major, minor) type field = initial;
#include "plimsoll/allocator/settings.inc"

  // A text that parses to this configuration. It is the text given to `parse`, unless `with` made
  // the configuration.
  std::string text;
  // The keys that are accepted, as in PyTorch, but have no effect on device memory. They stand in
  // the order of the parsed text, each with the reason why it has no effect.
  std::vector<std::pair<std::string, std::string>> without_effect;

  // Parses a configuration. Throws ConfigError with one line that names the key, the fault and the
  // allowed values.
  [[nodiscard]] static AllocatorConfig parse(std::string_view text, TorchVersion version = {});
  // Returns this configuration changed by `settings`, as torch.cuda.memory._set_allocator_settings
  // changes it. Keys that `settings` does not name keep their values, with these exceptions:
  // max_split_size_mb, roundup_power2_divisions and garbage_collection_threshold return to their
  // defaults, and from 2.11 on max_non_split_rounding_mb returns to the size of large segments
  // (AcceleratorAllocatorConfig::parseArgs). Throws like `parse`.
  [[nodiscard]] AllocatorConfig with(std::string_view settings, TorchVersion version = {}) const;

  // Rounds up the size of a request. `size` must not be 0. The request gets a block of the returned
  // size, or a larger block that is not split.
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
  // A request of this size or more gets a segment of its own size, rounded up to kSegmentMultiple.
  static constexpr Bytes kLargeRequest = 10 * kMiB;
  static constexpr Bytes kSegmentMultiple = 2 * kMiB;

 private:
  [[nodiscard]] Bytes divisions_for(Bytes size) const;
};

// Returns the limit on reserved bytes that torch.cuda.set_per_process_memory_fraction sets on a
// device with this much memory. From PyTorch 2.10 on, a fraction of 1 sets no limit.
[[nodiscard]] std::optional<Bytes> limit_of(double fraction, Bytes device_memory,
                                            TorchVersion version);

}  // namespace plimsoll
