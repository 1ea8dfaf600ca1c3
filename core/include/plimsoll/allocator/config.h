// PYTORCH_CUDA_ALLOC_CONF, parsed by PyTorch's rules for a stated version.
//
// Source of the keys and their bounds: c10/core/AllocatorConfig and c10/cuda/CUDAAllocatorConfig
// of PyTorch 2.9 to 2.15. Where PyTorch would ignore trailing garbage or a stray comma, this
// parser says what is wrong instead: a configuration that is accepted here is accepted there.
#pragma once

#include <array>
#include <compare>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plimsoll/units.h"

namespace plimsoll {

// The one place that knows which versions of PyTorch there are rules for, and which has which rule.
// Up to 2.11 the rules were checked against recordings; newer ones were read in PyTorch's source.
struct TorchVersion {
  int major = 2;
  int minor = 15;
  auto operator<=>(const TorchVersion&) const = default;

  // "2.11", "2.11.0+cu130". Throws ConfigError before kOldestTorch and after kNewestTorch.
  [[nodiscard]] static TorchVersion parse(std::string_view text);
  [[nodiscard]] std::string to_string() const;

  [[nodiscard]] bool has_large_segment_size() const { return *this >= TorchVersion{2, 11}; }
  // From 2.11 the pools marked use_on_oom come right after the first failed driver call; before,
  // they are the last resort.
  [[nodiscard]] bool uses_oom_pools_first() const { return *this >= TorchVersion{2, 11}; }
  [[nodiscard]] bool has_oom_rejection() const { return *this >= TorchVersion{2, 12}; }
  [[nodiscard]] bool records_pool_of_events() const { return *this >= TorchVersion{2, 12}; }
  [[nodiscard]] bool counts_private_pools() const { return *this >= TorchVersion{2, 13}; }
};

inline constexpr TorchVersion kOldestTorch{2, 9};
inline constexpr TorchVersion kNewestTorch{};

class ConfigError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

struct AllocatorConfig {
  static constexpr Bytes kUnlimited = std::numeric_limits<Bytes>::max();
  static constexpr std::size_t kRoundupIntervals = 16;  // 1 MiB, 2 MiB, … 32 GiB and more

  Bytes max_split_size = kUnlimited;
  Bytes max_non_split_rounding = 20 * kMiB;
  Bytes large_segment_size = 20 * kMiB;
  std::array<Bytes, kRoundupIntervals> roundup_power2_divisions{};  // 0: none
  double garbage_collection_threshold = 0;                          // 0: never
  double per_process_memory_fraction = 1.0;
  bool expandable_segments = false;
  bool throw_on_cudamalloc_oom = false;

  std::string text;  // as given
  // Keys that PyTorch accepts but that change no device memory, in order, each with why.
  std::vector<std::pair<std::string, std::string>> without_effect;

  // Throws ConfigError with one line that names the key, what is wrong and what is allowed.
  [[nodiscard]] static AllocatorConfig parse(std::string_view text, TorchVersion version = {});

  // The size of the block that a request of `size` > 0 bytes gets, if a free block can be split.
  [[nodiscard]] Bytes round_request(Bytes size) const;
  // What the driver is asked for, for a block of `rounded` bytes.
  [[nodiscard]] Bytes segment_size(Bytes rounded) const;

  static constexpr Bytes kMinBlock = 512;
  static constexpr Bytes kSmallRequest = kMiB;  // the largest that small pools serve
  static constexpr Bytes kSmallSegment = 2 * kMiB;
  static constexpr Bytes kLargeRequest = 10 * kMiB;  // from here on a segment fits its request
  static constexpr Bytes kSegmentMultiple = 2 * kMiB;

 private:
  [[nodiscard]] Bytes divisions_for(Bytes size) const;
};

}  // namespace plimsoll
