#include "plimsoll/simulated/allocation_addresses.h"

#include <algorithm>

#include "plimsoll/simulated/ranges.h"

namespace plimsoll {
namespace {

constexpr Bytes kChunk = 32 * kMiB;

}  // namespace

Address AllocationAddresses::take(Bytes size) {
  if (const auto place = free_in_chunks_.take(size, kGranule)) return *place;
  const Bytes chunk_size = round_up(size, kChunk);
  const auto returned = returned_.take_highest(chunk_size, kChunk);
  if (!returned) lowest_ = round_down(lowest_ - chunk_size, kChunk);
  const Address chunk = returned.value_or(lowest_);
  chunks_.emplace(chunk, chunk_size);
  free_in_chunks_.give(chunk + size, chunk_size - size);
  return chunk;
}

bool AllocationAddresses::take_at(Address address, Bytes size) {
  if (free_in_chunks_.take_at(address, size)) return true;
  if (overlaps(chunks_, address, size)) return false;
  returned_.take_all_of(address, size);
  lowest_ = std::min(lowest_, address);
  return true;
}

void AllocationAddresses::give(Address address, Bytes size) {
  const auto chunk = range_at(chunks_, address);
  if (chunk == chunks_.end()) return returned_.give(address, size);
  free_in_chunks_.give(address, size);
  const auto [begin, length] = *chunk;
  if (!free_in_chunks_.take_at(begin, length)) return;
  returned_.give(begin, length);
  chunks_.erase(chunk);
}

}  // namespace plimsoll
