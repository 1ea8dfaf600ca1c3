// A driver library without a GPU. It has the functions that CudaDriver calls, and keeps lists of
// the objects that exist. It is as strict as CUDA can be: a call in the wrong context fails, a call
// that a capture forbids breaks the capture, and a failed call leaves garbage in its results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "plimsoll/driver/cuda_api.h"

namespace plimsoll {

struct FakeCuda {
  struct Memory {
    std::size_t size = 0;
    cuda::AllocationProperties properties;
    int references = 0;  // the number of handles and mappings of this memory
  };
  struct Mapping {
    std::size_t size = 0;
    cuda::MemoryHandle handle = 0;
    std::set<cuda::Device> accessors;
  };
  struct Fault {
    int nth = 0;  // number of the call that fails, counted from 1
    cuda::Result result = 0;
  };

  // A test can set these: the machine's properties, its state, and the calls that fail.
  int devices = 2;
  bool peers_reach = true;
  std::size_t granularity = std::size_t{2} << 20;
  std::size_t memory = std::size_t{1} << 30;
  std::map<cuda::Attribute, int> attributes{
      {cuda::Attribute::virtual_memory, 1},
      {cuda::Attribute::posix_handles, 1},
      {cuda::Attribute::gpu_direct_rdma_with_virtual_memory, 1},
      {cuda::Attribute::host_numa_id, 1},
      {cuda::Attribute::host_numa_virtual_memory, 1},
      {cuda::Attribute::host_virtual_memory, 1},
  };
  bool capturing = false;  // whether another thread captures a graph in global mode
  cuda::Stream captured = nullptr;
  bool events_complete = true;
  std::map<std::string, Fault> faults;
  cuda::Result gone = 0;  // if not 0, every call returns this

  // A record of the calls so far.
  std::map<std::string, int> calls;
  bool capture_broken = false;
  unsigned event_flags = 0;
  std::vector<cuda::Stream> recorded_on;
  std::vector<cuda::Stream> waited_on;
  struct Copy {
    cuda::DevicePointer to = 0;
    cuda::DevicePointer from = 0;
    std::size_t size = 0;
    cuda::Stream stream = nullptr;
  };
  std::vector<Copy> copies;

  // The objects that exist.
  std::map<cuda::DevicePointer, std::size_t> allocations;
  std::map<cuda::DevicePointer, std::size_t> host_allocations;
  std::map<cuda::DevicePointer, std::size_t> reservations;
  std::map<cuda::MemoryHandle, Memory> handles;
  std::map<cuda::DevicePointer, Mapping> mappings;
  std::map<int, cuda::MemoryHandle> exported;  // each key is a file descriptor
  std::set<std::uintptr_t> events;
  std::map<cuda::Device, int> retained;

  std::uint64_t next = 0x100;
  std::recursive_mutex mutex;

  // Returns memory, addresses and access as text, for comparison. Leaves out the events, because
  // the driver may keep unused events for reuse.
  [[nodiscard]] std::string state() const {
    std::ostringstream out;
    for (const auto& [address, size] : allocations) out << "a" << address << '+' << size << ' ';
    for (const auto& [address, size] : host_allocations) {
      out << "p" << address << '+' << size << ' ';
    }
    for (const auto& [address, size] : reservations) out << "r" << address << '+' << size << ' ';
    for (const auto& [handle, memory_of] : handles) {
      out << "h" << handle << '*' << memory_of.references << ' ';
    }
    for (const auto& [address, mapping] : mappings) {
      out << "m" << address << '=' << mapping.handle << '(';
      for (const cuda::Device device : mapping.accessors) out << device << ',';
      out << ") ";
    }
    return out.str();
  }
};

// The contexts and the capture mode of the calling thread.
struct FakeThread {
  std::vector<cuda::Context> contexts;
  int capture_mode = 0;
};

}  // namespace plimsoll

extern "C" {
[[gnu::visibility("default")]] plimsoll::FakeCuda* fake_cuda();
[[gnu::visibility("default")]] plimsoll::FakeThread* fake_cuda_thread();
}
