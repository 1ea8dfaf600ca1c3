// The memory of simulated tensors. The engine, which is plimsoll's allocator, gives each allocation
// an address. The allocation also holds the part of its contents that is known.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace plimsoll::simulated {

// The known part of an allocation's contents; values/contents.h has the implementation.
class ContentsOfAllocation {
 public:
  virtual ~ContentsOfAllocation() = default;
};

// One live allocation on a device. A storage owns it: this object is the context of the storage's
// DataPtr.
struct Allocation {
  std::uint64_t address = 0;
  std::size_t size = 0;
  c10::DeviceIndex device = 0;
  std::uint64_t serial = 0;  // the number of the allocation, counted per device
  at::Tensor host;           // the owner of the memory, if this is mapped host memory
  bool is_lent = false;      // a CUDA graph or `host` owns the memory, so it is not freed here
  std::unique_ptr<ContentsOfAllocation> contents;  // made by the first read or write

  Allocation(std::uint64_t address, std::size_t size, c10::DeviceIndex device,
             std::uint64_t serial);
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  ~Allocation();
};

c10::Allocator* device_allocator();

// Returns the allocation that a storage owns; null if the storage is not simulated device memory.
Allocation* held_by(const c10::StorageImpl& storage);
// Return the allocation that contains the memory of a storage or of a tensor. The storage need not
// own the allocation: DLPack and __cuda_array_interface__ make storages over existing memory.
// Return null if there is no memory, if the memory is on the host, or if no allocation contains the
// whole memory. Neither function throws.
Allocation* allocation_of(const c10::StorageImpl& storage);
Allocation* allocation_of(const at::Tensor& tensor);
// Returns the bytes from the start of the tensor's allocation to the tensor's first element.
std::size_t offset_of(const at::Tensor& tensor);

// Throws PyTorch's error if a later run of a CUDA graph has overwritten the tensor's memory.
void check_access(const at::Tensor& tensor);

// Returns the live allocation that contains an address on a device; null if there is none.
Allocation* allocation_at(c10::DeviceIndex device, std::uint64_t address);

// Makes an allocation over memory that a CUDA graph keeps. Releasing the allocation frees the
// memory only if `own` was called.
at::DataPtr lent_memory(std::uint64_t address, std::size_t size, c10::DeviceIndex device);
void own(Allocation& allocation);
// Notes that other code has freed the allocation's block, so that releasing the allocation frees
// nothing.
void disown(Allocation& allocation);
// Frees the allocation's memory. The object stays and still has the old address.
void let_go(Allocation& allocation);

// Takes memory, for example a workspace; destroying the result frees it.
at::DataPtr take_memory(std::size_t size);

// Returns the device's cached memory to the driver, like torch.cuda.empty_cache().
void empty_cache(c10::DeviceIndex index);
// Returns the size of the largest request that would succeed: the card's free memory, or a cached
// block if one is larger.
std::size_t largest_request(c10::DeviceIndex index);

}  // namespace plimsoll::simulated
