#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <utility>

#include "cuda/gpus.h"

// The functions of CUDA's runtime that libc10_cuda imports. A function that PyTorch's caching
// allocator does not call returns an error.

namespace plimsoll::wheel {
namespace {

enum Code : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotReady = 600,
  kNotSupported = 801,
  kUnknown = 999,
};

thread_local int current = 0;
thread_local int last_error = kSuccess;

int report(int code) {
  if (code != kSuccess) last_error = code;
  return code;
}

// A CUDA event, which a program may record several times. Each recording makes a new event of the
// driver.
struct CudaEvent {
  Gpu* gpu = nullptr;
  int driver = 0;
  std::uint64_t event = 0;

  // Calls a function of the driver that made the event; does nothing if that driver no longer
  // exists.
  int call(int (*plimsoll_driver_api::*function)(plimsoll_driver*, std::uint64_t)) const {
    return gpu == nullptr || gpu->number != driver ? 0 : gpu->call(function, event);
  }
};

CudaEvent& event_of(void* event) { return *static_cast<CudaEvent*>(event); }
std::uint64_t number(const void* address) { return reinterpret_cast<std::uint64_t>(address); }

}  // namespace

int Gpu::cuda_code(int status) {
  switch (status) {
    case PLIMSOLL_SUCCESS: return kSuccess;
    case PLIMSOLL_OUT_OF_MEMORY: return kOutOfMemory;
    case PLIMSOLL_NOT_READY: return kNotReady;
    default: return kUnknown;
  }
}

Gpu& gpu(int number) {
  static Gpu gpus[kGpus];
  return gpus[number];
}
Gpu& current_gpu() { return gpu(current); }

static std::map<std::uint64_t, Gpu*>& owners() {
  static auto* const owners = new std::map<std::uint64_t, Gpu*>;
  return *owners;
}
Gpu& owner_of(std::uint64_t address) {
  const auto after = owners().upper_bound(address);
  return after == owners().begin() ? current_gpu() : *std::prev(after)->second;
}
void note_owner(std::uint64_t address, Gpu& gpu) { owners()[address] = &gpu; }

}  // namespace plimsoll::wheel

#pragma GCC visibility push(default)

extern "C" {

using namespace plimsoll::wheel;

// Memory.
int cudaMalloc(void** address, std::size_t size) {
  std::uint64_t made = 0;
  const int code = current_gpu().call(&plimsoll_driver_api::allocate, size, &made);
  *address = reinterpret_cast<void*>(made);
  if (code == kSuccess) note_owner(made, current_gpu());
  return report(code);
}
int cudaFree(void* address) {
  if (address == nullptr) return kSuccess;
  Gpu& gpu = owner_of(number(address));
  return report(gpu.call(&plimsoll_driver_api::deallocate, number(address)));
}
int cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  std::uint64_t info[3]{};
  if (const Gpu& gpu = current_gpu(); gpu.api != nullptr) {
    gpu.api->memory_info(gpu.driver, &info[0], &info[1], &info[2]);
  }
  *free = info[0];
  *total = info[1];
  return kSuccess;
}

// Devices.
int cudaGetDevice(int* device) {
  *device = current;
  return kSuccess;
}
int cudaSetDevice(int device) {
  current = device;
  return kSuccess;
}
int cudaGetDeviceCount(int* count) {
  *count = kGpus;
  return kSuccess;
}
// Fills in the fields that PyTorch reads. cudaDeviceProp begins with a name, two identifiers and
// the size of global memory.
int cudaGetDeviceProperties(char* properties, int device) {
  constexpr std::size_t kProperties = 1008;
  constexpr std::size_t kTotalMemory = 288;
  std::size_t free = 0;
  std::size_t total = 0;
  const int before = std::exchange(current, device);
  cudaMemGetInfo(&free, &total);
  current = before;
  std::memset(properties, 0, kProperties);
  std::strcpy(properties, "plimsoll");
  std::memcpy(properties + kTotalMemory, &total, sizeof total);
  return kSuccess;
}
int cudaGetDeviceProperties_v2(char* properties, int device) {
  return cudaGetDeviceProperties(properties, device);
}
int cudaDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return kSuccess;
}
int cudaDeviceSynchronize() {
  return report(current_gpu().call(&plimsoll_driver_api::synchronize));
}

// Errors.
int cudaGetLastError() { return std::exchange(last_error, +kSuccess); }
int cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorString(int code) {
  return code == kOutOfMemory ? "out of memory" : "unknown error";
}
const char* cudaGetErrorName(int code) {
  return code == kOutOfMemory ? "cudaErrorMemoryAllocation" : "cudaErrorUnknown";
}

// Streams and events.
int cudaStreamIsCapturing(void*, int* status) {
  *status = current_gpu().captures > 0 ? 1 : 0;
  return kSuccess;
}
int cudaStreamGetCaptureInfo(void* stream, int* status, ...) {
  return cudaStreamIsCapturing(stream, status);
}
int cudaStreamGetCaptureInfo_v2(void* stream, int* status, ...) {
  return cudaStreamIsCapturing(stream, status);
}
int cudaThreadExchangeStreamCaptureMode(int*) { return kSuccess; }
int cudaStreamQuery(void*) { return kSuccess; }
int cudaStreamSynchronize(void* stream) {
  return report(current_gpu().call(&plimsoll_driver_api::synchronize_stream, stream_of(stream)));
}
int cudaEventCreateWithFlags(void** event, unsigned) {
  *event = new CudaEvent;
  return kSuccess;
}
int cudaEventDestroy(void* event) {
  (void)event_of(event).call(&plimsoll_driver_api::destroy);
  delete &event_of(event);
  return kSuccess;
}
int cudaEventRecord(void* event, void* stream) {
  CudaEvent made{&current_gpu(), current_gpu().number};
  const int code = made.gpu->call(&plimsoll_driver_api::record, stream_of(stream), &made.event);
  if (code != kSuccess) return report(code);
  (void)event_of(event).call(&plimsoll_driver_api::destroy);
  event_of(event) = made;
  return kSuccess;
}
int cudaEventQuery(void* event) {
  return report(event_of(event).call(&plimsoll_driver_api::query));
}
int cudaEventSynchronize(void* event) {
  return report(event_of(event).call(&plimsoll_driver_api::synchronize_event));
}

// Returns functions of the driver by name.
int cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long, int* found) {
  *function = driver_function(name);
  *found = *function != nullptr ? 0 : 1;
  return *function != nullptr ? kSuccess : kInvalidValue;
}
int cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                     unsigned long long, int* found) {
  return cudaGetDriverEntryPoint(name, function, 0, found);
}

#define PLIMSOLL_UNSUPPORTED(name) \
  int name() { return kNotSupported; }
PLIMSOLL_UNSUPPORTED(cudaDeviceCanAccessPeer)
PLIMSOLL_UNSUPPORTED(cudaDeviceEnablePeerAccess)
PLIMSOLL_UNSUPPORTED(cudaDeviceGetDefaultMemPool)
PLIMSOLL_UNSUPPORTED(cudaDeviceGetGraphMemAttribute)
PLIMSOLL_UNSUPPORTED(cudaDeviceSetGraphMemAttribute)
PLIMSOLL_UNSUPPORTED(cudaEventElapsedTime)
PLIMSOLL_UNSUPPORTED(cudaFreeAsync)
PLIMSOLL_UNSUPPORTED(cudaGraphAddEmptyNode)
PLIMSOLL_UNSUPPORTED(cudaGraphNodeGetDependencies)
PLIMSOLL_UNSUPPORTED(cudaGraphNodeGetType)
PLIMSOLL_UNSUPPORTED(cudaIpcCloseMemHandle)
PLIMSOLL_UNSUPPORTED(cudaIpcGetMemHandle)
PLIMSOLL_UNSUPPORTED(cudaIpcOpenMemHandle)
PLIMSOLL_UNSUPPORTED(cudaMallocAsync)
PLIMSOLL_UNSUPPORTED(cudaMemPoolGetAttribute)
PLIMSOLL_UNSUPPORTED(cudaMemPoolSetAccess)
PLIMSOLL_UNSUPPORTED(cudaMemPoolSetAttribute)
PLIMSOLL_UNSUPPORTED(cudaMemPoolTrimTo)
PLIMSOLL_UNSUPPORTED(cudaMemcpy)
PLIMSOLL_UNSUPPORTED(cudaMemcpyAsync)
PLIMSOLL_UNSUPPORTED(cudaMemcpyPeerAsync)
PLIMSOLL_UNSUPPORTED(cudaStreamCreateWithPriority)
PLIMSOLL_UNSUPPORTED(cudaStreamUpdateCaptureDependencies)
PLIMSOLL_UNSUPPORTED(cudaStreamWaitEvent)

}  // extern "C"

#pragma GCC visibility pop
