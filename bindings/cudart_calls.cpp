// Implements functions of CUDA's runtime (libcudart) with the simulated driver, for programs that
// open libcudart by `ctypes` and for libraries that are linked to it.
//
// For all errors that these functions return, the runtime and the driver have the same codes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <sys/mman.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "cuda_calls.h"
#include "cuda_functions.h"
#include "module.h"

namespace plimsoll::python {
namespace {

using cuda::DevicePointer;
using cuda::Result;

DevicePointer address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

// --- devices -----------------------------------------------------------------------------------

Result get_device(int* device) {
  *device = simulated_runtime().current_device();
  return cuda::kSuccess;
}
Result set_device(int device) {
  return simulated_runtime().set_device(device) == 0 ? cuda::kSuccess : cuda::kInvalidDevice;
}
Result get_device_count(int* count) { return simulated_driver().cuDeviceGetCount(count); }
Result synchronize_device() { return simulated_driver().cuCtxSynchronize(); }
Result synchronize_stream(void*) { return simulated_driver().cuCtxSynchronize(); }
Result get_version(int* version) { return simulated_driver().cuDriverGetVersion(version); }

// --- errors: each call returns its own, and none is kept ----------------------------------------

Result last_error() { return cuda::kSuccess; }

using Describe = Result (*)(Result, const char**);
const char* described(Describe describe, Result error) {
  const char* text = nullptr;
  const bool is_known = describe(error, &text) == cuda::kSuccess && text != nullptr;
  return is_known ? text : "unrecognized error code";
}
const char* error_name(Result error) { return described(simulated_driver().cuGetErrorName, error); }
const char* error_string(Result error) {
  return described(simulated_driver().cuGetErrorString, error);
}

// --- memory of the card ------------------------------------------------------------------------

Result memory_info(std::size_t* free, std::size_t* total) {
  return simulated_driver().cuMemGetInfo_v2(free, total);
}

Result allocate(void** address, std::size_t size) {
  DevicePointer found = 0;
  const Result result = simulated_driver().cuMemAlloc_v2(&found, size);
  if (result == cuda::kSuccess) *address = reinterpret_cast<void*>(found);
  return result;
}
Result deallocate(void* address) { return simulated_driver().cuMemFree_v2(address_of(address)); }

// The addresses determine the direction of a copy.
Result copy(void* to, const void* from, std::size_t size, int) {
  return simulated_driver().cuMemcpy(address_of(to), address_of(from), size);
}
Result copy_on_stream(void* to, const void* from, std::size_t size, int kind, void*) {
  return copy(to, from, size, kind);
}
Result fill(void* address, int value, std::size_t size) {
  return simulated_driver().cuMemsetD8_v2(address_of(address), static_cast<unsigned char>(value),
                                          size);
}
Result fill_on_stream(void* address, int value, std::size_t size, void*) {
  return fill(address, value, size);
}

// --- page-locked memory of the host ------------------------------------------------------------

std::mutex host_lock;
std::map<void*, std::size_t> host_blocks;

// The pages take the machine's memory only when the program writes them.
Result allocate_host(void** address, std::size_t size) {
  void* const made = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return size == 0 ? cuda::kInvalidValue : cuda::kOutOfMemory;
  if (const Result result = simulated_runtime().pin(made, size); result != cuda::kSuccess) {
    munmap(made, size);
    return result;
  }
  const std::lock_guard guard(host_lock);
  host_blocks.emplace(made, size);
  *address = made;
  return cuda::kSuccess;
}
Result allocate_host_by_flags(void** address, std::size_t size, unsigned) {
  return allocate_host(address, size);
}

Result free_host(void* address) {
  if (address == nullptr) return cuda::kSuccess;
  std::size_t size = 0;
  {
    const std::lock_guard guard(host_lock);
    const auto found = host_blocks.find(address);
    if (found == host_blocks.end()) return cuda::kInvalidValue;
    size = found->second;
    host_blocks.erase(found);
  }
  const Result result = simulated_runtime().unpin(address);
  munmap(address, size);
  return result;
}

Result register_host(void* address, std::size_t size, unsigned) {
  return simulated_runtime().pin(address, size);
}
Result unregister_host(void* address) { return simulated_runtime().unpin(address); }

// --- a library that replaces cudaMalloc and cudaFree -------------------------------------------

using Malloc = Result (*)(void**, std::size_t);
using Free = Result (*)(void*);
Malloc replaced_malloc = nullptr;
Free replaced_free = nullptr;

// Makes a device the thread's current one, as PyTorch does around its calls of cudaMalloc.
class OnDevice {
 public:
  explicit OnDevice(int device) : before_(simulated_runtime().current_device()) {
    simulated_runtime().set_device(device);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { simulated_runtime().set_device(before_); }

 private:
  int before_;
};

void* give(std::ptrdiff_t size, int device, void*) {
  const OnDevice guard(device);
  void* address = nullptr;
  const Result result = replaced_malloc(&address, static_cast<std::size_t>(size));
  return result == cuda::kSuccess ? address : nullptr;
}

void take_back(void* address, std::ptrdiff_t, int device, void*) {
  const OnDevice guard(device);
  replaced_free(address);
}

std::pair<std::uintptr_t, std::uintptr_t> replace_allocation(std::uintptr_t malloc,
                                                             std::uintptr_t free) {
  replaced_malloc = reinterpret_cast<Malloc>(malloc);
  replaced_free = reinterpret_cast<Free>(free);
  return {reinterpret_cast<std::uintptr_t>(&give), reinterpret_cast<std::uintptr_t>(&take_back)};
}

}  // namespace

const CudaFunctions& cuda_functions() {
  static const CudaFunctions functions = [] {
    CudaFunctions all;
    const auto add = [&](const char* name, auto* function) {
      all.emplace(name, reinterpret_cast<std::uintptr_t>(function));
    };
#define PLIMSOLL_CUDA_CALL(name, parameters, arguments) add(#name, simulated_driver().name);
#include "calls.inc"
#undef PLIMSOLL_CUDA_CALL
    add("cudaGetDevice", get_device);
    add("cudaSetDevice", set_device);
    add("cudaGetDeviceCount", get_device_count);
    add("cudaDeviceSynchronize", synchronize_device);
    add("cudaStreamSynchronize", synchronize_stream);
    add("cudaRuntimeGetVersion", get_version);
    add("cudaDriverGetVersion", get_version);
    add("cudaGetLastError", last_error);
    add("cudaPeekAtLastError", last_error);
    add("cudaGetErrorName", error_name);
    add("cudaGetErrorString", error_string);
    add("cudaMemGetInfo", memory_info);
    add("cudaMalloc", allocate);
    add("cudaFree", deallocate);
    add("cudaMemcpy", copy);
    add("cudaMemcpyAsync", copy_on_stream);
    add("cudaMemset", fill);
    add("cudaMemsetAsync", fill_on_stream);
    add("cudaMallocHost", allocate_host);
    add("cudaHostAlloc", allocate_host_by_flags);
    add("cudaFreeHost", free_host);
    add("cudaHostRegister", register_host);
    add("cudaHostUnregister", unregister_host);
    return all;
  }();
  return functions;
}

void bind_cudart_calls(nanobind::module_& module) {
  module.def(
      "cuda_function",
      [](const std::string& name) {
        const auto found = cuda_functions().find(name);
        return found == cuda_functions().end() ? 0 : found->second;
      },
      nanobind::arg("name"),
      "The address of a function of CUDA's driver or runtime on simulated GPUs; 0 if it is not\n"
      "simulated.");
  module.def(
      "replace_allocation", &replace_allocation, nanobind::arg("malloc"), nanobind::arg("free"),
      "Addresses of the two functions of a CUDAPluggableAllocator that call a library's own\n"
      "cudaMalloc and cudaFree, whose addresses are the arguments.");
}

}  // namespace plimsoll::python
