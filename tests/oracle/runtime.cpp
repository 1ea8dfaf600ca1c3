#include "runtime.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

// CUDA's runtime, as far as libc10_cuda imports it. Functions that PyTorch's caching allocator does
// not call are missing where possible and refuse to work elsewhere.

namespace {

using plimsoll::Event;
using plimsoll::SimulatedDriver;
using plimsoll::Status;
using plimsoll::StreamId;

enum Code : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotReady = 600,
  kNotSupported = 801,
  kUnknown = 999,
};

struct Gpu {
  explicit Gpu(plimsoll::Bytes memory) : driver(host, memory) {}
  plimsoll::SimulatedHost host{0};
  SimulatedDriver driver;
};

std::unique_ptr<Gpu> gpu;
bool is_capturing = false;
int last_error = kSuccess;

int report(Status status) {
  const int code = oracle_code(status);
  if (code != kSuccess) last_error = code;
  return code;
}

// An event that a program may record several times. The driver's is new each time.
struct CudaEvent {
  Event event = 0;
};

StreamId id_of(const void* stream) { return reinterpret_cast<StreamId>(stream); }

}  // namespace

void oracle_make_gpu(plimsoll::Bytes memory) { gpu = std::make_unique<Gpu>(memory); }
SimulatedDriver& oracle_gpu() { return gpu->driver; }
void oracle_set_capturing(bool capturing) { is_capturing = capturing; }

int oracle_code(Status status) {
  switch (status) {
    case Status::success: return kSuccess;
    case Status::invalid_value: return kInvalidValue;
    case Status::out_of_memory: return kOutOfMemory;
    case Status::not_ready: return kNotReady;
    case Status::not_supported: return kNotSupported;
    default: return kUnknown;
  }
}

extern "C" {

// Memory.
int cudaMalloc(void** address, std::size_t size) {
  plimsoll::Address made = 0;
  const Status status = gpu->driver.allocate(size, made);
  *address = reinterpret_cast<void*>(made);
  return report(status);
}
int cudaFree(void* address) {
  if (address == nullptr) return kSuccess;
  return report(gpu->driver.deallocate(reinterpret_cast<plimsoll::Address>(address)));
}
int cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const plimsoll::MemoryInfo memory = gpu->driver.memory_info();
  *free = memory.free;
  *total = memory.total;
  return kSuccess;
}

// The device.
int cudaGetDevice(int* device) {
  *device = 0;
  return kSuccess;
}
int cudaSetDevice(int) { return kSuccess; }
int cudaGetDeviceCount(int* count) {
  *count = 1;
  return kSuccess;
}
// cudaDeviceProp begins with a name, two identities and the size of global memory.
int cudaGetDeviceProperties(char* properties, int) {
  constexpr std::size_t kProperties = 1008;
  constexpr std::size_t kTotalMemory = 288;
  const std::size_t total = gpu->driver.memory_info().total;
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
int cudaDeviceSynchronize() { return report(gpu->driver.synchronize()); }

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
  *status = is_capturing ? 1 : 0;
  return kSuccess;
}
int cudaStreamGetCaptureInfo(void*, int* status, ...) {
  *status = is_capturing ? 1 : 0;
  return kSuccess;
}
int cudaStreamGetCaptureInfo_v2(void*, int* status, ...) {
  *status = is_capturing ? 1 : 0;
  return kSuccess;
}
int cudaThreadExchangeStreamCaptureMode(int*) { return kSuccess; }
int cudaStreamQuery(void*) { return kSuccess; }
int cudaStreamSynchronize(void* stream) {
  return report(gpu->driver.synchronize_stream(id_of(stream)));
}
int cudaEventCreateWithFlags(void** event, unsigned) {
  *event = new CudaEvent;
  return kSuccess;
}
int cudaEventDestroy(void* event) {
  auto* const made = static_cast<CudaEvent*>(event);
  if (gpu && made->event != 0) gpu->driver.destroy(made->event);
  delete made;
  return kSuccess;
}
int cudaEventRecord(void* event, void* stream) {
  auto* const made = static_cast<CudaEvent*>(event);
  Event recorded = 0;
  const Status status = gpu->driver.record(id_of(stream), recorded);
  if (status != Status::success) return report(status);
  if (made->event != 0) gpu->driver.destroy(made->event);
  made->event = recorded;
  return kSuccess;
}
int cudaEventQuery(void* event) {
  return report(gpu->driver.query(static_cast<CudaEvent*>(event)->event));
}
int cudaEventSynchronize(void* event) {
  return report(gpu->driver.synchronize(static_cast<CudaEvent*>(event)->event));
}

// The driver's functions by name.
int cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long, int* found) {
  *function = oracle_driver_function(name);
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
