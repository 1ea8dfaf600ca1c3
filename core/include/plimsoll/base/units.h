// Defines sizes, addresses, the granule and pool identifiers. Every layer uses them.
//
// Sizes are bytes and addresses are device addresses, both unsigned 64-bit. A stream's identifier
// is the value of its handle (`cudaStream_t`); 0 is the default stream.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace plimsoll {

using Address = std::uint64_t;
using Bytes = std::uint64_t;
using StreamId = std::uint64_t;

inline constexpr Bytes kKiB = 1024;
inline constexpr Bytes kMiB = 1024 * kKiB;
inline constexpr Bytes kGiB = 1024 * kMiB;

// The smallest piece of physical memory that a driver maps.
inline constexpr Bytes kGranule = 2 * kMiB;

// Identifies a memory pool. {0, 0} is the default pool. Every other pool is private, and belongs to
// CUDA graphs or to a torch.cuda.MemPool.
struct PoolId {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  auto operator<=>(const PoolId&) const = default;
  [[nodiscard]] bool is_default() const { return first == 0 && second == 0; }
};

[[nodiscard]] constexpr Bytes round_up(Bytes size, Bytes multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

[[nodiscard]] constexpr Bytes round_down(Bytes size, Bytes multiple) {
  return size / multiple * multiple;
}

// Formats a size as "20.00 MiB": two decimals and binary units, as in PyTorch's messages.
[[nodiscard]] std::string format_bytes(Bytes size);
// Formats an address as "0x7f3a00000000".
[[nodiscard]] std::string format_address(Address address);

}  // namespace plimsoll
