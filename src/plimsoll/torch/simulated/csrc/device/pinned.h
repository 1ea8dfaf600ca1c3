// Pinned host memory: PyTorch's pool, and the memory that programs pin themselves.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace plimsoll::simulated {

c10::Allocator* pinned_allocator();
bool is_pinned(const void* address);

// Notes that a copy on a stream uses pinned memory: the pool reuses the block only after the copy.
void note_pinned_use(const void* address, c10::DeviceIndex device, c10::StreamId stream);
// Do what cudaHostRegister and cudaHostUnregister do, and return CUDA's error codes.
int pin(void* address, std::size_t size);
int unpin(void* address);

// PyTorch's counters of pinned memory; shared with Python.
struct Counter {
  std::int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  void increase(std::size_t amount);
  void decrease(std::size_t amount);
};
struct PinnedStatistics {
  Counter allocations, active_requests;   // blocks taken from the driver; blocks in use
  Counter allocated_bytes, active_bytes;  // the same counters in bytes
  Counter asked_bytes;                    // active_bytes without the rounding of sizes
};
PinnedStatistics pinned_statistics();
// Changes all counters. If `peaks` is true, sets each `peak` to `current`; otherwise sets
// `allocated` and `freed` to 0.
void reset_pinned_statistics(bool peaks);
// The largest size that the pool rounds up to a power of two, and the largest size that it caches.
// They are PyTorch's settings pinned_max_round_threshold_mb and pinned_max_cached_size_mb.
struct PinnedLimits {
  std::size_t rounded = std::numeric_limits<std::size_t>::max();
  std::size_t cached = std::numeric_limits<std::size_t>::max();
};
void limit_pinned(PinnedLimits limits);
// Frees the pool's cached memory.
void empty_pinned_pool();
// Estimates how many bytes of the pool's memory the process has written since the pool took it.
std::uint64_t pinned_written_bytes();
// Estimates how many bytes the process has written in the memory that `pin` has pinned. Memory no
// longer counts once `unpin` was called for it.
std::uint64_t registered_written_bytes();

}  // namespace plimsoll::simulated
