#include "plimsoll/driver/cuda_api.h"

#ifndef _WIN32
#include <dlfcn.h>
#endif

namespace plimsoll::cuda {
namespace {

#ifdef _WIN32

class Library {
 public:
  explicit Library(const std::string&) {
    throw Unavailable("NVIDIA's driver is used on Linux only");
  }
  template <typename Function>
  bool find(Function&, const char*) const {
    return false;
  }
  template <typename Function>
  void require(Function&, const char*) const {}
};

#else

class Library {
 public:
  explicit Library(const std::string& name)
      : name_(name), handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
      const char* const reason = dlerror();
      throw Unavailable("no NVIDIA driver is installed: " +
                        (reason != nullptr ? std::string(reason) : name));
    }
  }

  template <typename Function>
  bool find(Function& function, const char* symbol) const {
    function = reinterpret_cast<Function>(dlsym(handle_, symbol));
    return function != nullptr;
  }

  template <typename Function>
  void require(Function& function, const char* symbol) const {
    if (!find(function, symbol)) {
      throw Unavailable("the NVIDIA driver cannot be used: " + name_ + " has no " + symbol);
    }
  }

 private:
  std::string name_;
  void* handle_;
};

#endif

}  // namespace

Api Api::load(const std::string& name) {
  const Library library(name);
  Api api;
  library.require(api.init, "cuInit");
  library.require(api.get_error_name, "cuGetErrorName");
  library.require(api.get_error_string, "cuGetErrorString");
  library.require(api.device_get_count, "cuDeviceGetCount");
  library.require(api.device_get, "cuDeviceGet");
  library.require(api.device_get_attribute, "cuDeviceGetAttribute");
  library.require(api.device_can_access_peer, "cuDeviceCanAccessPeer");
  library.require(api.primary_context_retain, "cuDevicePrimaryCtxRetain");
  library.require(api.primary_context_release, "cuDevicePrimaryCtxRelease_v2");
  library.require(api.context_get_current, "cuCtxGetCurrent");
  library.require(api.context_push, "cuCtxPushCurrent_v2");
  library.require(api.context_pop, "cuCtxPopCurrent_v2");
  library.require(api.context_synchronize, "cuCtxSynchronize");
  library.require(api.mem_alloc, "cuMemAlloc_v2");
  library.require(api.mem_free, "cuMemFree_v2");
  library.require(api.mem_get_info, "cuMemGetInfo_v2");
  library.require(api.mem_host_alloc, "cuMemHostAlloc");
  library.require(api.mem_free_host, "cuMemFreeHost");
  library.require(api.memcpy_async, "cuMemcpyAsync");
  library.require(api.event_create, "cuEventCreate");
  library.require(api.event_destroy, "cuEventDestroy_v2");
  library.require(api.event_record, "cuEventRecord");
  library.require(api.event_query, "cuEventQuery");
  library.require(api.event_synchronize, "cuEventSynchronize");
  library.require(api.stream_wait_event, "cuStreamWaitEvent");
  library.require(api.stream_synchronize, "cuStreamSynchronize");
  library.require(api.stream_is_capturing, "cuStreamIsCapturing");
  library.require(api.thread_exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");

  const bool has_virtual_memory =
      library.find(api.mem_address_reserve, "cuMemAddressReserve") &&
      library.find(api.mem_address_free, "cuMemAddressFree") &&
      library.find(api.mem_get_granularity, "cuMemGetAllocationGranularity") &&
      library.find(api.mem_create, "cuMemCreate") &&
      library.find(api.mem_release, "cuMemRelease") &&
      library.find(api.mem_retain, "cuMemRetainAllocationHandle") &&
      library.find(api.mem_map, "cuMemMap") && library.find(api.mem_set_access, "cuMemSetAccess") &&
      library.find(api.mem_unmap, "cuMemUnmap") &&
      library.find(api.mem_export, "cuMemExportToShareableHandle") &&
      library.find(api.mem_import, "cuMemImportFromShareableHandle");
  if (!has_virtual_memory) api.mem_address_reserve = nullptr;
  return api;
}

}  // namespace plimsoll::cuda
