#include "plimsoll/simulated/allocation_addresses.h"

#include <algorithm>

#include "plimsoll/simulated/ranges.h"

namespace plimsoll {
namespace {

constexpr Bytes kChunk = 32 * kMiB;
constexpr Bytes kUpperArea = Bytes{1} << 40;

}  // namespace

Address AllocationAddresses::take(Bytes size) {
  if (const auto place = free_in_chunks_.take(size, kGranule)) return *place;
  const Bytes chunk_size = round_up(size, kChunk);
  const auto returned = returned_.take_highest(chunk_size, kChunk);
  const Address chunk = returned ? *returned : new_chunk(chunk_size);
  chunks_.emplace(chunk, chunk_size);
  free_in_chunks_.give(chunk + size, chunk_size - size);
  return chunk;
}

Address AllocationAddresses::new_chunk(Bytes size) {
  const bool is_above = scattered_ && ((*scattered_)() & 1) != 0;
  Address& lowest = is_above ? lowest_above_ : lowest_;
  lowest = round_down(lowest - size, kChunk);
  return lowest;
}

void AllocationAddresses::scatter(std::uint64_t seed) {
  scattered_.emplace(seed);
  lowest_above_ = lowest_;
  lowest_ -= kUpperArea;
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
