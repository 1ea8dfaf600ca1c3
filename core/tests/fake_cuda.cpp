#include "fake_cuda.h"

#pragma GCC visibility push(default)

namespace plimsoll {
namespace {

using namespace cuda;  // NOLINT: the driver's own names

constexpr Result kInvalidContext = 201;
constexpr Result kInvalidHandle = 400;
constexpr Result kCapturedEvent = 907;
constexpr std::uint64_t kRubbish = 0xdeadbeef;

FakeCuda& fake() { return *fake_cuda(); }
FakeThread& thread() { return *fake_cuda_thread(); }

Context context_of(Device device) {
  return reinterpret_cast<Context>(static_cast<std::uintptr_t>(device + 1) << 32);
}

enum class Needs : std::uint8_t { nothing, context, no_capture };

// One call of a driver function. Takes the lock and counts the call. `result()` is an error if a
// test asked for an error, if the thread lacks the context that the call needs, or if a capture
// forbids the call.
class Entry {
 public:
  Entry(const char* name, Needs needs) : lock_(fake().mutex) {
    const int number = ++fake().calls[name];
    const auto fault = fake().faults.find(name);
    if (fake().gone != kSuccess) {
      result_ = fake().gone;
    } else if (fault != fake().faults.end() && fault->second.nth == number) {
      result_ = fault->second.result;
    } else if (needs != Needs::nothing && !is_current()) {
      result_ = kInvalidContext;
    } else if (needs == Needs::no_capture && fake().capturing &&
               thread().capture_mode != kRelaxedCapture) {
      fake().capture_broken = true;
      result_ = kCaptureUnsupported;
    }
  }
  [[nodiscard]] Result result() const { return result_; }

 private:
  static bool is_current() {
    const auto& contexts = thread().contexts;
    return !contexts.empty() && contexts.back() == context_of(0);
  }
  std::lock_guard<std::recursive_mutex> lock_;
  Result result_ = kSuccess;
};

[[maybe_unused]] void drop(MemoryHandle handle) {
  if (--fake().handles.at(handle).references == 0) fake().handles.erase(handle);
}

std::size_t used() {
  std::size_t sum = 0;
  for (const auto& [address, size] : fake().allocations) sum += size;
  for (const auto& [handle, memory] : fake().handles) {
    if (memory.properties.location.type == LocationType::device) sum += memory.size;
  }
  return sum;
}

bool is_event(Event event) {
  return fake().events.contains(reinterpret_cast<std::uintptr_t>(event));
}

// Returns whether the range is a sequence of whole mappings without gaps.
[[maybe_unused]] bool is_filled(DevicePointer address, std::size_t size) {
  const DevicePointer end = address + size;
  while (address < end) {
    const auto mapping = fake().mappings.find(address);
    if (mapping == fake().mappings.end()) return false;
    address += mapping->second.size;
  }
  return address == end;
}

[[maybe_unused]] void apply(DevicePointer address, std::size_t size,
                            const AccessDescription& description) {
  for (auto it = fake().mappings.lower_bound(address);
       it != fake().mappings.end() && it->first < address + size; ++it) {
    if (description.access == Access::read_write) {
      it->second.accessors.insert(description.location.id);
    } else {
      it->second.accessors.erase(description.location.id);
    }
  }
}

}  // namespace
}  // namespace plimsoll

using namespace plimsoll;        // NOLINT
using namespace plimsoll::cuda;  // NOLINT

#define ENTER(name, needs)               \
  const Entry entry(name, Needs::needs); \
  if (entry.result() != kSuccess) return entry.result()

extern "C" {

FakeCuda* fake_cuda() {
  static FakeCuda state;
  return &state;
}

FakeThread* fake_cuda_thread() {
  thread_local FakeThread state;
  return &state;
}

Result cuInit(unsigned) {
  ENTER("cuInit", nothing);
  return kSuccess;
}

Result cuGetErrorName(Result result, const char** text) {
  if (result != 12345) return kInvalidValue;
  *text = "CUDA_ERROR_OF_TOMORROW";
  return kSuccess;
}

Result cuGetErrorString(Result result, const char** text) {
  if (result != 12345) return kInvalidValue;
  *text = "not invented yet";
  return kSuccess;
}

Result cuDeviceGetCount(int* count) {
  ENTER("cuDeviceGetCount", nothing);
  *count = fake().devices;
  return kSuccess;
}

Result cuDeviceGet(Device* device, int ordinal) {
  ENTER("cuDeviceGet", nothing);
  if (ordinal < 0 || ordinal >= fake().devices) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

Result cuDeviceGetAttribute(int* value, Attribute attribute, Device) {
  ENTER("cuDeviceGetAttribute", nothing);
  const auto place = fake().attributes.find(attribute);
  if (place == fake().attributes.end()) return kInvalidValue;
  *value = place->second;
  return kSuccess;
}

Result cuDeviceCanAccessPeer(int* reaches, Device device, Device peer) {
  ENTER("cuDeviceCanAccessPeer", nothing);
  *reaches = fake().peers_reach && device != peer ? 1 : 0;
  return kSuccess;
}

Result cuDevicePrimaryCtxRetain(Context* context, Device device) {
  ENTER("cuDevicePrimaryCtxRetain", nothing);
  ++fake().retained[device];
  *context = context_of(device);
  return kSuccess;
}

Result cuDevicePrimaryCtxRelease_v2(Device device) {
  ENTER("cuDevicePrimaryCtxRelease_v2", nothing);
  --fake().retained[device];
  return kSuccess;
}

Result cuCtxGetCurrent(Context* context) {
  ENTER("cuCtxGetCurrent", nothing);
  *context = thread().contexts.empty() ? nullptr : thread().contexts.back();
  return kSuccess;
}

Result cuCtxPushCurrent_v2(Context context) {
  ENTER("cuCtxPushCurrent_v2", nothing);
  thread().contexts.push_back(context);
  return kSuccess;
}

Result cuCtxPopCurrent_v2(Context* context) {
  ENTER("cuCtxPopCurrent_v2", context);
  *context = thread().contexts.back();
  thread().contexts.pop_back();
  return kSuccess;
}

Result cuCtxSynchronize() {
  ENTER("cuCtxSynchronize", context);
  if (!fake().capturing) return kSuccess;
  fake().capture_broken = true;
  return kCaptureUnsupported;
}

Result cuThreadExchangeStreamCaptureMode(int* mode) {
  ENTER("cuThreadExchangeStreamCaptureMode", nothing);
  std::swap(*mode, thread().capture_mode);
  return kSuccess;
}

Result cuMemAlloc_v2(DevicePointer* pointer, std::size_t size) {
  *pointer = kRubbish;
  ENTER("cuMemAlloc_v2", no_capture);
  if (size == 0) return kInvalidValue;
  if (size > fake().memory - used()) return kOutOfMemory;
  *pointer = fake().next++ << 40;
  fake().allocations[*pointer] = size;
  return kSuccess;
}

Result cuMemFree_v2(DevicePointer pointer) {
  ENTER("cuMemFree_v2", no_capture);
  return fake().allocations.erase(pointer) > 0 ? kSuccess : kInvalidValue;
}

Result cuMemHostAlloc(void** pointer, std::size_t size, unsigned flags) {
  *pointer = reinterpret_cast<void*>(kRubbish);
  ENTER("cuMemHostAlloc", no_capture);
  if (size == 0 || flags != (kPortableHostMemory | kMappedHostMemory)) return kInvalidValue;
  const DevicePointer address = fake().next++ << 40;
  fake().host_allocations[address] = size;
  *pointer = reinterpret_cast<void*>(address);
  return kSuccess;
}

Result cuMemFreeHost(void* pointer) {
  ENTER("cuMemFreeHost", no_capture);
  return fake().host_allocations.erase(reinterpret_cast<DevicePointer>(pointer)) > 0
             ? kSuccess
             : kInvalidValue;
}

Result cuMemcpyAsync(DevicePointer to, DevicePointer from, std::size_t size, Stream stream) {
  ENTER("cuMemcpyAsync", context);
  fake().copies.push_back({to, from, size, stream});
  return kSuccess;
}

Result cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  *free = *total = kRubbish;
  ENTER("cuMemGetInfo_v2", context);
  *free = fake().memory - used();
  *total = fake().memory;
  return kSuccess;
}

Result cuEventCreate(Event* event, unsigned flags) {
  *event = reinterpret_cast<Event>(kRubbish);
  ENTER("cuEventCreate", context);
  fake().event_flags = flags;
  const std::uintptr_t made = fake().next++;
  fake().events.insert(made);
  *event = reinterpret_cast<Event>(made);
  return kSuccess;
}

Result cuEventDestroy_v2(Event event) {
  ENTER("cuEventDestroy_v2", context);
  return fake().events.erase(reinterpret_cast<std::uintptr_t>(event)) > 0 ? kSuccess
                                                                          : kInvalidHandle;
}

Result cuEventRecord(Event event, Stream stream) {
  ENTER("cuEventRecord", context);
  if (!is_event(event)) return kInvalidHandle;
  fake().recorded_on.push_back(stream);
  return kSuccess;
}

Result cuEventQuery(Event event) {
  ENTER("cuEventQuery", no_capture);
  if (!is_event(event)) return kInvalidHandle;
  return fake().events_complete ? kSuccess : kNotReady;
}

Result cuEventSynchronize(Event event) {
  ENTER("cuEventSynchronize", no_capture);
  return is_event(event) ? kSuccess : kInvalidHandle;
}

Result cuStreamWaitEvent(Stream stream, Event event, unsigned) {
  ENTER("cuStreamWaitEvent", context);
  if (!is_event(event)) return kInvalidHandle;
  fake().waited_on.push_back(stream);
  return kSuccess;
}

Result cuStreamIsCapturing(Stream stream, int* status) {
  ENTER("cuStreamIsCapturing", context);
  *status = fake().capturing && stream == fake().captured ? 1 : kNotCapturing;
  return kSuccess;
}

Result cuStreamSynchronize(Stream stream) {
  ENTER("cuStreamSynchronize", no_capture);
  if (fake().capturing && stream == fake().captured) {
    fake().capture_broken = true;
    return kCapturedEvent;
  }
  return kSuccess;
}

#ifndef FAKE_CUDA_WITHOUT_VIRTUAL_MEMORY

Result cuMemAddressReserve(DevicePointer* pointer, std::size_t size, std::size_t alignment,
                           DevicePointer hint, unsigned long long flags) {
  *pointer = kRubbish;
  ENTER("cuMemAddressReserve", no_capture);
  if (size % fake().granularity != 0 || alignment != std::size_t{2} << 20 || hint != 0 ||
      flags != 0) {
    return kInvalidValue;
  }
  *pointer = fake().next++ << 40;
  fake().reservations[*pointer] = size;
  return kSuccess;
}

Result cuMemAddressFree(DevicePointer pointer, std::size_t size) {
  ENTER("cuMemAddressFree", no_capture);
  const auto reservation = fake().reservations.find(pointer);
  if (reservation == fake().reservations.end() || reservation->second != size) {
    return kInvalidValue;
  }
  fake().reservations.erase(reservation);
  return kSuccess;
}

Result cuMemGetAllocationGranularity(std::size_t* granularity, const AllocationProperties*,
                                     int option) {
  ENTER("cuMemGetAllocationGranularity", nothing);
  if (option != kMinimumGranularity) return kInvalidValue;
  *granularity = fake().granularity;
  return kSuccess;
}

Result cuMemCreate(MemoryHandle* handle, std::size_t size, const AllocationProperties* properties,
                   unsigned long long flags) {
  *handle = kRubbish;
  ENTER("cuMemCreate", no_capture);
  const bool on_card = properties->location.type == LocationType::device;
  if (properties->type != kPinned || flags != 0 || size % fake().granularity != 0) {
    return kInvalidValue;
  }
  if (properties->location.type == LocationType::host && properties->handle_types != 0) {
    return kInvalidValue;
  }
  if (!on_card && properties->gpu_direct_rdma != 0) return kInvalidValue;
  if (on_card && size > fake().memory - used()) return kOutOfMemory;
  *handle = fake().next++;
  fake().handles[*handle] = {size, *properties, 1};
  return kSuccess;
}

Result cuMemRelease(MemoryHandle handle) {
  ENTER("cuMemRelease", no_capture);
  if (!fake().handles.contains(handle)) return kInvalidValue;
  drop(handle);
  return kSuccess;
}

Result cuMemRetainAllocationHandle(MemoryHandle* handle, void* address) {
  *handle = kRubbish;
  ENTER("cuMemRetainAllocationHandle", no_capture);
  const auto mapping = fake().mappings.find(reinterpret_cast<DevicePointer>(address));
  if (mapping == fake().mappings.end()) return kInvalidValue;
  *handle = mapping->second.handle;
  ++fake().handles.at(*handle).references;
  return kSuccess;
}

Result cuMemMap(DevicePointer pointer, std::size_t size, std::size_t offset, MemoryHandle handle,
                unsigned long long flags) {
  ENTER("cuMemMap", no_capture);
  const auto memory = fake().handles.find(handle);
  if (memory == fake().handles.end() || memory->second.size != size || offset != 0 || flags != 0 ||
      fake().mappings.contains(pointer)) {
    return kInvalidValue;
  }
  ++memory->second.references;
  fake().mappings[pointer] = {size, handle, {}};
  return kSuccess;
}

Result cuMemSetAccess(DevicePointer pointer, std::size_t size,
                      const AccessDescription* descriptions, std::size_t count) {
  const Entry entry("cuMemSetAccess", Needs::no_capture);
  if (!is_filled(pointer, size)) return kInvalidValue;
  if (entry.result() != kSuccess) {
    apply(pointer, size, descriptions[0]);
    return entry.result();
  }
  for (std::size_t i = 0; i < count; ++i) apply(pointer, size, descriptions[i]);
  return kSuccess;
}

Result cuMemUnmap(DevicePointer pointer, std::size_t size) {
  ENTER("cuMemUnmap", no_capture);
  if (!is_filled(pointer, size)) return kInvalidValue;
  const auto begin = fake().mappings.lower_bound(pointer);
  const auto end = fake().mappings.lower_bound(pointer + size);
  for (auto it = begin; it != end; ++it) drop(it->second.handle);
  fake().mappings.erase(begin, end);
  return kSuccess;
}

Result cuMemExportToShareableHandle(void* shareable, MemoryHandle handle, int type,
                                    unsigned long long flags) {
  ENTER("cuMemExportToShareableHandle", no_capture);
  const auto memory = fake().handles.find(handle);
  if (memory == fake().handles.end() || type != kPosixFileDescriptor || flags != 0 ||
      memory->second.properties.handle_types != type) {
    return kInvalidValue;
  }
  const int descriptor = static_cast<int>(fake().next++);
  fake().exported[descriptor] = handle;
  *static_cast<int*>(shareable) = descriptor;
  return kSuccess;
}

Result cuMemImportFromShareableHandle(MemoryHandle* handle, void* shareable, int type) {
  *handle = kRubbish;
  ENTER("cuMemImportFromShareableHandle", no_capture);
  const auto exported =
      fake().exported.find(static_cast<int>(reinterpret_cast<std::intptr_t>(shareable)));
  if (exported == fake().exported.end() || type != kPosixFileDescriptor) return kInvalidValue;
  *handle = exported->second;
  ++fake().handles.at(*handle).references;
  return kSuccess;
}

#endif

}  // extern "C"
