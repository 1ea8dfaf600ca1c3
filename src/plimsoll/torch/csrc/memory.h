// Memory behind simulated tensors: an address of the engine, and for small ones their values.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace plimsoll::simulated {

// One live allocation on a device; the context of its storage's DataPtr.
struct Allocation {
  std::uint64_t address = 0;
  std::size_t size = 0;
  c10::DeviceIndex device = 0;
  std::uint64_t serial = 0;             // counts the device's allocations
  std::unique_ptr<std::byte[]> values;  // only where something computed or read them
  bool is_placeholder = true;           // the values are not those a GPU would have
};

c10::Allocator* device_allocator();
c10::Allocator* pinned_allocator();
bool is_pinned(const void* address);

// Pinned memory, shared with Python: what programs hold, what the pool keeps, and their peaks.
struct PinnedStatistics {
  std::uint64_t active_bytes = 0, active_peak = 0, reserved_bytes = 0, reserved_peak = 0;
  std::uint64_t requests = 0, releases = 0, driver_calls = 0;
};
PinnedStatistics pinned_statistics();
// Gives back what the pool keeps and nobody holds.
void empty_pinned_pool();

// The allocation behind a tensor's storage; null for one without memory, or not of a device.
Allocation* allocation_of(const c10::StorageImpl& storage);
Allocation* allocation_of(const at::Tensor& tensor);

// Memory that is held until the object dies, such as a workspace.
at::DataPtr take_memory(std::size_t size);

}  // namespace plimsoll::simulated
