#include "plimsoll/allocator/pool_source.h"

#include <algorithm>
#include <cstdint>

namespace plimsoll {
namespace {

void* as_pointer(std::uint64_t value) { return reinterpret_cast<void*>(value); }

}  // namespace

Address PoolSource::give(Bytes size, StreamId stream) const {
  void* const memory = give_(static_cast<std::ptrdiff_t>(size), device_, as_pointer(stream));
  return reinterpret_cast<std::uintptr_t>(memory);
}

void PoolSource::take_back(const Segment& segment) const {
  take_back_(as_pointer(segment.address), static_cast<std::ptrdiff_t>(segment.size), device_,
             as_pointer(segment.stream));
}

Address PoolSource::accept(Bytes size, StreamId stream) {
  const auto found = std::find_if(offered_.begin(), offered_.end(), [&](const Segment& segment) {
    return segment.size == size && segment.stream == stream;
  });
  if (found == offered_.end()) return 0;
  const Address address = found->address;
  offered_.erase(found);
  return address;
}

void PoolSource::withdraw(Address address) {
  const auto found = std::find_if(offered_.begin(), offered_.end(), [&](const Segment& segment) {
    return segment.address == address;
  });
  if (found == offered_.end()) return;
  released_.push_back(*found);
  offered_.erase(found);
}

}  // namespace plimsoll
