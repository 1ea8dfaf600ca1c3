// Hashes the sizes of the last `kLength` requests. A new size changes the hash in constant time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plimsoll/base/units.h"

namespace plimsoll {

template <std::size_t kLength>
class ContextHash {
 public:
  static constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15u;  // the hash is a polynomial in it

  [[nodiscard]] std::uint64_t value() const { return value_; }
  // Adds a size. `oldest` is the size that was added `kLength` sizes ago; 0 if there is none.
  void add(Bytes size, Bytes oldest) {
    value_ = value_ * kFactor + size - oldest * kFactorOfOldest;
  }

 private:
  static constexpr std::uint64_t kFactorOfOldest = [] {
    std::uint64_t power = 1;
    for (std::size_t i = 0; i < kLength; ++i) power *= kFactor;
    return power;
  }();

  std::uint64_t value_ = 0;
};

}  // namespace plimsoll
