// PYTORCH_CUDA_ALLOC_CONF, parsed by PyTorch's rules for a stated version.
//
// Source of the keys and their bounds: c10/core/AllocatorConfig and c10/cuda/CUDAAllocatorConfig
// of PyTorch 2.9 to 2.15. Where PyTorch would ignore trailing garbage, a stray comma or a reserve
// that is none, this parser says what is wrong instead: a configuration that is accepted here is
// accepted there.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "plimsoll/base/units.h"

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
  // Read, not recorded: CUDACachingAllocator.cpp, pull requests 192188 (2.14) and 192269 (2.15).
  // From 2.13 on only the capture of a graph keeps events from being queried and the cache from
  // being given back; before, all requests that go to a pool do.
  [[nodiscard]] bool tells_captures_from_pools() const { return *this >= TorchVersion{2, 13}; }
  [[nodiscard]] bool forgets_no_split() const { return *this >= TorchVersion{2, 14}; }
  [[nodiscard]] bool has_expandable_reserve() const { return *this >= TorchVersion{2, 15}; }
  // From 2.13 on a block at a given place is cut out by a request for what lies before it, which
  // is freed at once. Read, not recorded: mallocWithAddress in CUDACachingAllocator.cpp.
  [[nodiscard]] bool allocates_prefixes() const { return *this >= TorchVersion{2, 13}; }
  [[nodiscard]] bool counts_private_pools() const { return *this >= TorchVersion{2, 13}; }

  // What comes first among free blocks of equal size. Read, not recorded: the comparators of
  // CUDACachingAllocator.cpp (pull requests 178362 and 183591).
  enum class Ties : std::uint8_t {
    address,
    block,    // 2.12: the one that was made first; the front of a split is a new one
    segment,  // from 2.13 on: the one in the older segment, then by address
  };
  [[nodiscard]] Ties ties() const {
    if (*this >= TorchVersion{2, 13}) return Ties::segment;
    return *this >= TorchVersion{2, 12} ? Ties::block : Ties::address;
  }
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
  // The address space of an expandable segment: a fraction of the device's memory, or bytes.
  std::optional<std::variant<double, Bytes>> expandable_segments_reserve;

  std::string text;  // makes this configuration on its own; as given, unless `with` made it
  // Keys that PyTorch accepts but that change no device memory, in order, each with why.
  std::vector<std::pair<std::string, std::string>> without_effect;

  // Throws ConfigError with one line that names the key, what is wrong and what is allowed.
  [[nodiscard]] static AllocatorConfig parse(std::string_view text, TorchVersion version = {});
  // This configuration after the program makes `settings`, as
  // torch.cuda.memory._set_allocator_settings does. max_split_size_mb, roundup_power2_divisions and
  // garbage_collection_threshold fall back to their defaults where they are not named; all other
  // keys keep their values (AcceleratorAllocatorConfig::parseArgs). Throws as `parse`.
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

}  // namespace plimsoll
