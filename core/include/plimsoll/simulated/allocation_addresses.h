// Chooses addresses for allocations like cudaMalloc's, as the CUDA driver was observed to do on
// Linux. Address space is taken in chunks of at least 32 MiB, and allocations fill a chunk from its
// lowest address up. For an allocation that fits in no chunk, a new chunk is taken. The new chunk
// takes addresses that earlier chunks gave back: the highest range that is large enough. If there
// is no such range, the new chunk lies below all earlier chunks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>

#include "plimsoll/base/units.h"
#include "plimsoll/simulated/address_space.h"

namespace plimsoll {

class AllocationAddresses {
 public:
  // Makes addresses below `end`, where the first chunk ends.
  explicit AllocationAddresses(Address end) : lowest_(end) {}

  [[nodiscard]] Address take(Bytes size);
  // Takes exactly this range if no chunk contains any of it, or if it is a free part of a chunk;
  // otherwise returns false.
  bool take_at(Address address, Bytes size);
  void give(Address address, Bytes size);

  // Places each later chunk, at random, in one of two areas that lie far apart. A driver was
  // observed to do so when a process has several GPUs.
  void scatter(std::uint64_t seed);

 private:
  [[nodiscard]] Address new_chunk(Bytes size);

  Address lowest_;            // where the lowest chunk begins (after `scatter`: in the lower area)
  Address lowest_above_ = 0;  // after `scatter`: where the lowest chunk of the upper area begins
  std::optional<std::mt19937_64> scattered_;
  AddressSpace returned_;            // addresses given back, above `lowest_`
  std::map<Address, Bytes> chunks_;  // address space taken for allocations
  AddressSpace free_in_chunks_;
};

}  // namespace plimsoll
