// A version of PyTorch, and which rules of torch_versions.inc hold in it.
#pragma once

#include <compare>
#include <string>
#include <string_view>

namespace plimsoll {

// A version of PyTorch; by default the newest one that plimsoll knows.
struct TorchVersion {
#define PLIMSOLL_KNOWN(oldest_major, oldest_minor, newest_major, newest_minor) \
  int major = newest_major;                                                    \
  int minor = newest_minor;
#include "plimsoll/torch_versions.inc"
  auto operator<=>(const TorchVersion&) const = default;

#define PLIMSOLL_SINCE(rule, since_major, since_minor)      \
  [[nodiscard]] constexpr bool rule() const {               \
    return *this >= TorchVersion{since_major, since_minor}; \
  }
#include "plimsoll/torch_versions.inc"

  // Parses a version such as "2.11" or "2.11.0+cu130". Throws ConfigError for versions before
  // kOldestTorch or after kNewestTorch. The definition is in core/src/allocator/config.cpp, so only
  // code that is linked with the core can call it.
  [[nodiscard]] static TorchVersion parse(std::string_view text);
  [[nodiscard]] std::string to_string() const;
};

#define PLIMSOLL_KNOWN(oldest_major, oldest_minor, newest_major, newest_minor) \
  inline constexpr TorchVersion kOldestTorch{oldest_major, oldest_minor};      \
  inline constexpr TorchVersion kNewestTorch{newest_major, newest_minor};
#include "plimsoll/torch_versions.inc"

}  // namespace plimsoll
