// The memory of simulated tensors: an address of the engine, and the knowledge of its contents.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace plimsoll::simulated {

// The knowledge of an allocation's contents; values/contents.h defines it.
class ContentsOfAllocation {
 public:
  virtual ~ContentsOfAllocation() = default;
};

// One live allocation on a device; the context of its storage's DataPtr.
struct Allocation {
  std::uint64_t address = 0;
  std::size_t size = 0;
  c10::DeviceIndex device = 0;
  std::uint64_t serial = 0;  // numbers the device's allocations
  at::Tensor host;           // the host tensor whose memory it is, if any
  bool is_lent = false;      // the memory is a graph's, and not freed with the allocation
  std::unique_ptr<ContentsOfAllocation> contents;  // made by the first read or write

  Allocation(std::uint64_t address, std::size_t size, c10::DeviceIndex device,
             std::uint64_t serial);
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  ~Allocation();
};

c10::Allocator* device_allocator();

// Returns the allocation that a storage holds until it dies; null for any other storage.
Allocation* held_by(const c10::StorageImpl& storage);
// Return the allocation that contains a tensor, whichever storage holds the allocation: DLPack and
// __cuda_array_interface__ make a storage over another storage's memory. Null for a tensor without
// memory, on no device, or reaching beyond an allocation. Neither throws.
Allocation* allocation_of(const c10::StorageImpl& storage);
Allocation* allocation_of(const at::Tensor& tensor);
// Returns the bytes from the start of the tensor's allocation to the tensor's first element.
std::size_t offset_of(const at::Tensor& tensor);

// Throws PyTorch's error if a kernel uses a tensor whose memory PyTorch has marked as overwritten
// by a later run of a CUDA graph.
void check_access(const at::Tensor& tensor);

// Returns the live allocation that contains an address of a device; null if there is none.
Allocation* allocation_at(c10::DeviceIndex device, std::uint64_t address);

// Makes an allocation in memory that a graph keeps. The allocation frees the memory only after
// `own`.
at::DataPtr lent_memory(std::uint64_t address, std::size_t size, c10::DeviceIndex device);
void own(Allocation& allocation);
// Notes that other code has freed the allocation's block.
void disown(Allocation& allocation);
// Frees the allocation's memory; the address stays.
void let_go(Allocation& allocation);

// Takes memory, such as a workspace, that is held until the object dies.
at::DataPtr take_memory(std::size_t size);

// Gives cached memory back to the driver.
void empty_cache(c10::DeviceIndex index);
// Returns the most that one request can get: the card's free memory, or a larger cached block.
std::size_t largest_request(c10::DeviceIndex index);

}  // namespace plimsoll::simulated
