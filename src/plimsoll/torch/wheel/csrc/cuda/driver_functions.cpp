#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "cuda/gpus.h"

// The functions of CUDA's driver that expandable segments need. PyTorch finds them by name. It also
// refuses to start without some functions that it does not use here, so this file has these too.

namespace plimsoll::wheel {
namespace {

using Number = std::uint64_t;  // for addresses, handles and flags

// A handle that PyTorch gets is the driver's handle times `kGpus`, plus the GPU's number.
Gpu& owner_of_handle(Number handle) { return gpu(static_cast<int>(handle % kGpus)); }

int reserve(Number* address, std::size_t size, std::size_t, Number, Number) {
  const int code = current_gpu().call(&plimsoll_driver_api::reserve, size, address);
  if (code == 0) note_owner(*address, current_gpu());
  return code;
}
int unreserve(Number address, std::size_t size) {
  return owner_of(address).call(&plimsoll_driver_api::unreserve, address, size);
}
int create(Number* handle, std::size_t size, const void*, Number) {
  Gpu& creating = current_gpu();
  const int code = creating.call(&plimsoll_driver_api::create, size, handle);
  *handle = *handle * kGpus + static_cast<Number>(&creating - &gpu(0));
  return code;
}
int release(Number handle) {
  return owner_of_handle(handle).call(&plimsoll_driver_api::release, handle / kGpus);
}
int map(Number address, std::size_t size, std::size_t, Number handle, Number) {
  return owner_of_handle(handle).call(&plimsoll_driver_api::map, address, size, handle / kGpus);
}
int set_access(Number address, std::size_t size, const void*, std::size_t) {
  return owner_of(address).call(&plimsoll_driver_api::set_access, address, size);
}
int unmap(Number address, std::size_t size) {
  return owner_of(address).call(&plimsoll_driver_api::unmap, address, size);
}
int granularity(std::size_t* size, const void*, int) {
  constexpr std::size_t kGranule = std::size_t{2} << 20;
  *size = kGranule;
  return 0;
}
int device(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int attribute(int* value, int, int) {
  *value = 0;
  return 0;
}
int error_string(int code, const char** text) {
  *text = code == Gpu::cuda_code(PLIMSOLL_OUT_OF_MEMORY) ? "out of memory" : "unknown error";
  return 0;
}
int unsupported() {
  constexpr int kNotSupported = 801;
  return kNotSupported;
}

struct Function {
  std::string_view name;
  void* address;
};
// clang-format off
#define PLIMSOLL_FUNCTION(name, function) {#name, reinterpret_cast<void*>(&function)},
const Function kFunctions[] = {
    PLIMSOLL_FUNCTION(cuMemAddressReserve, reserve)
    PLIMSOLL_FUNCTION(cuMemAddressFree, unreserve)
    PLIMSOLL_FUNCTION(cuMemCreate, create)
    PLIMSOLL_FUNCTION(cuMemRelease, release)
    PLIMSOLL_FUNCTION(cuMemMap, map)
    PLIMSOLL_FUNCTION(cuMemSetAccess, set_access)
    PLIMSOLL_FUNCTION(cuMemUnmap, unmap)
    PLIMSOLL_FUNCTION(cuMemGetAllocationGranularity, granularity)
    PLIMSOLL_FUNCTION(cuDeviceGet, device)
    PLIMSOLL_FUNCTION(cuDeviceGetAttribute, attribute)
    PLIMSOLL_FUNCTION(cuGetErrorString, error_string)
    PLIMSOLL_FUNCTION(cuMemGetAddressRange, unsupported)
    PLIMSOLL_FUNCTION(cuMemExportToShareableHandle, unsupported)
    PLIMSOLL_FUNCTION(cuMemImportFromShareableHandle, unsupported)
    PLIMSOLL_FUNCTION(cuMemRetainAllocationHandle, unsupported)
    PLIMSOLL_FUNCTION(cuMemGetAllocationPropertiesFromHandle, unsupported)
    PLIMSOLL_FUNCTION(cuMemsetD32Async, unsupported)
    PLIMSOLL_FUNCTION(cuStreamWriteValue32, unsupported)
};
// clang-format on

}  // namespace

void* driver_function(const char* name) {
  const auto* const found =
      std::find_if(std::begin(kFunctions), std::end(kFunctions),
                   [&](const Function& function) { return function.name == name; });
  return found == std::end(kFunctions) ? nullptr : found->address;
}

}  // namespace plimsoll::wheel
