// Memory behind simulated tensors: an address of the engine, and what is known of its contents.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace plimsoll::simulated {

// What is known of an allocation's contents; values/contents.h says what that is.
class ContentsOfAllocation {
 public:
  virtual ~ContentsOfAllocation() = default;
};

// One live allocation on a device; the context of its storage's DataPtr.
struct Allocation {
  std::uint64_t address = 0;
  std::size_t size = 0;
  c10::DeviceIndex device = 0;
  std::uint64_t serial = 0;  // counts the device's allocations
  at::Tensor host;           // the tensor whose memory it is, where that is the host's
  bool is_lent = false;      // a graph's memory, which is not freed with it
  std::unique_ptr<ContentsOfAllocation> contents;  // only where something wrote or read them

  Allocation(std::uint64_t address, std::size_t size, c10::DeviceIndex device,
             std::uint64_t serial);
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  ~Allocation();
};

c10::Allocator* device_allocator();

// The allocation that a storage holds until it dies; null for any other storage.
Allocation* held_by(const c10::StorageImpl& storage);
// The allocation that a tensor lies in, whichever storage holds that: DLPack and
// __cuda_array_interface__ make a storage over memory that another storage holds. Null for a tensor
// without memory, or not of a device, or that reaches beyond an allocation.
// Neither throws.
Allocation* allocation_of(const c10::StorageImpl& storage);
Allocation* allocation_of(const at::Tensor& tensor);
// Bytes from the beginning of the allocation that a tensor lies in to the first element.
std::size_t offset_of(const at::Tensor& tensor);

// Throws PyTorch's error for a kernel that uses a tensor whose memory PyTorch has marked as
// overwritten by a later run of a CUDA graph.
void check_access(const at::Tensor& tensor);

// The one that an address of a device lies in, and null where nothing lives there.
Allocation* allocation_at(c10::DeviceIndex device, std::uint64_t address);

// An allocation in memory that a graph keeps. It frees that only once it owns it again.
at::DataPtr lent_memory(std::uint64_t address, std::size_t size, c10::DeviceIndex device);
void own(Allocation& allocation);
// Its block was freed otherwise.
void disown(Allocation& allocation);
// Frees what it owns; the address stays.
void let_go(Allocation& allocation);

// Memory that is held until the object dies, such as a workspace.
at::DataPtr take_memory(std::size_t size);

// Gives cached memory back to the driver.
void empty_cache(c10::DeviceIndex index);
// The most that one request can have: free memory of the card, or a larger block that is cached.
std::size_t largest_request(c10::DeviceIndex index);

}  // namespace plimsoll::simulated
