// NVIDIA's driver API, loaded at run time: building needs no CUDA toolkit.
//
// The types, numbers and prototypes are those of the driver's binary interface, which CUDA has kept
// since 10.2. This header gives them other names, so that a file can include it together with
// NVIDIA's header. NVIDIA's "CUDA Driver API" manual documents the entry points: `mem_create` is
// cuMemCreate.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

namespace plimsoll::cuda {

using Result = int;  // CUresult; cuda_errors.h explains its values
inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kDeinitialized = 4;
inline constexpr Result kInvalidDevice = 101;
inline constexpr Result kNotReady = 600;
inline constexpr Result kNotSupported = 801;
inline constexpr Result kCaptureUnsupported = 900;

using Device = int;
using DevicePointer = unsigned long long;
using MemoryHandle = unsigned long long;
using Context = struct CUctx_st*;
using Stream = struct CUstream_st*;
using Event = struct CUevent_st*;

inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kPortableHostMemory = 1;  // CU_MEMHOSTALLOC_PORTABLE
inline constexpr unsigned kMappedHostMemory = 2;    // CU_MEMHOSTALLOC_DEVICEMAP

enum class Attribute : int {
  virtual_memory = 102,
  posix_handles = 103,
  gpu_direct_rdma_with_virtual_memory = 110,
  host_numa_id = 134,
  host_numa_virtual_memory = 141,
  host_virtual_memory = 145,
};

enum class LocationType : int { device = 1, host = 2, host_numa = 3 };

struct Location {
  LocationType type = LocationType::device;
  int id = 0;
};

inline constexpr int kPinned = 1;               // CU_MEM_ALLOCATION_TYPE_PINNED
inline constexpr int kPosixFileDescriptor = 1;  // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
inline constexpr int kMinimumGranularity = 0;   // CU_MEM_ALLOC_GRANULARITY_MINIMUM
inline constexpr int kNotCapturing = 0;         // CU_STREAM_CAPTURE_STATUS_NONE
inline constexpr int kRelaxedCapture = 2;       // CU_STREAM_CAPTURE_MODE_RELAXED

struct AllocationProperties {
  int type = kPinned;
  int handle_types = 0;
  Location location;
  void* windows_handle = nullptr;
  unsigned char compression = 0;
  unsigned char gpu_direct_rdma = 0;
  unsigned short usage = 0;
  unsigned char reserved[4] = {};
};
static_assert(sizeof(AllocationProperties) == 32);

enum class Access : int { none = 0, read_write = 3 };

struct AccessDescription {
  Location location;
  Access access = Access::read_write;
};
static_assert(sizeof(AccessDescription) == 12);

// The entry points of one loaded driver. The library stays loaded until the process ends, because
// the driver runs threads of its own.
struct Api {
  // Throws Unavailable if the library is missing, or if it lacks a required entry point.
  static Api load(const std::string& library = "libcuda.so.1");

  Result (*init)(unsigned flags) = nullptr;
  Result (*get_error_name)(Result, const char**) = nullptr;
  Result (*get_error_string)(Result, const char**) = nullptr;

  Result (*device_get_count)(int*) = nullptr;
  Result (*device_get)(Device*, int ordinal) = nullptr;
  Result (*device_get_attribute)(int*, Attribute, Device) = nullptr;
  Result (*device_can_access_peer)(int*, Device, Device peer) = nullptr;
  Result (*primary_context_retain)(Context*, Device) = nullptr;
  Result (*primary_context_release)(Device) = nullptr;
  Result (*context_get_current)(Context*) = nullptr;
  Result (*context_push)(Context) = nullptr;
  Result (*context_pop)(Context*) = nullptr;
  Result (*context_synchronize)() = nullptr;

  Result (*mem_alloc)(DevicePointer*, std::size_t) = nullptr;
  Result (*mem_free)(DevicePointer) = nullptr;
  Result (*mem_get_info)(std::size_t* free, std::size_t* total) = nullptr;
  Result (*mem_host_alloc)(void**, std::size_t, unsigned flags) = nullptr;
  Result (*mem_free_host)(void*) = nullptr;
  Result (*memcpy_async)(DevicePointer to, DevicePointer from, std::size_t, Stream) = nullptr;

  Result (*event_create)(Event*, unsigned flags) = nullptr;
  Result (*event_destroy)(Event) = nullptr;
  Result (*event_record)(Event, Stream) = nullptr;
  Result (*event_query)(Event) = nullptr;
  Result (*event_synchronize)(Event) = nullptr;
  Result (*stream_wait_event)(Stream, Event, unsigned flags) = nullptr;
  Result (*stream_synchronize)(Stream) = nullptr;
  Result (*stream_is_capturing)(Stream, int* status) = nullptr;
  Result (*thread_exchange_capture_mode)(int* mode) = nullptr;

  // The entry points of virtual memory management. All are null if the driver is older than CUDA
  // 11.
  Result (*mem_address_reserve)(DevicePointer*, std::size_t, std::size_t alignment,
                                DevicePointer hint, unsigned long long flags) = nullptr;
  Result (*mem_address_free)(DevicePointer, std::size_t) = nullptr;
  Result (*mem_get_granularity)(std::size_t*, const AllocationProperties*, int option) = nullptr;
  Result (*mem_create)(MemoryHandle*, std::size_t, const AllocationProperties*,
                       unsigned long long flags) = nullptr;
  Result (*mem_release)(MemoryHandle) = nullptr;
  Result (*mem_retain)(MemoryHandle*, void* address) = nullptr;
  Result (*mem_map)(DevicePointer, std::size_t, std::size_t offset, MemoryHandle,
                    unsigned long long flags) = nullptr;
  Result (*mem_set_access)(DevicePointer, std::size_t, const AccessDescription*,
                           std::size_t count) = nullptr;
  Result (*mem_unmap)(DevicePointer, std::size_t) = nullptr;
  Result (*mem_export)(void* shareable, MemoryHandle, int type, unsigned long long flags) = nullptr;
  Result (*mem_import)(MemoryHandle*, void* shareable, int type) = nullptr;

  [[nodiscard]] bool has_virtual_memory() const { return mem_address_reserve != nullptr; }
};

// Thrown when no GPU can be used. The message gives the reason in one line.
class Unavailable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace plimsoll::cuda
