#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string_view>

#include "runtime.h"

// CUDA's driver, as far as expandable segments need it. PyTorch looks its functions up by name, and
// refuses to start without some that it calls elsewhere only.

namespace {

using plimsoll::Address;
using plimsoll::Handle;
using plimsoll::Status;

int reserve(Address* address, std::size_t size, std::size_t, Address, unsigned long long) {
  return oracle_code(oracle_gpu().reserve(size, *address));
}
int unreserve(Address address, std::size_t size) {
  return oracle_code(oracle_gpu().unreserve(address, size));
}
int create(Handle* handle, std::size_t size, const void*, unsigned long long) {
  return oracle_code(oracle_gpu().create(size, plimsoll::Tier::dedicated, *handle));
}
int release(Handle handle) { return oracle_code(oracle_gpu().release(handle)); }
int map(Address address, std::size_t size, std::size_t, Handle handle, unsigned long long) {
  return oracle_code(oracle_gpu().map(address, size, handle));
}
int set_access(Address address, std::size_t size, const void*, std::size_t) {
  return oracle_code(oracle_gpu().set_access(address, size));
}
int unmap(Address address, std::size_t size) {
  return oracle_code(oracle_gpu().unmap(address, size));
}
int granularity(std::size_t* size, const void*, int) {
  *size = plimsoll::kGranule;
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
  *text = code == oracle_code(Status::out_of_memory) ? "out of memory" : "unknown error";
  return 0;
}
int unsupported() { return oracle_code(Status::not_supported); }

struct Function {
  std::string_view name;
  void* address;
};
#define PLIMSOLL_FUNCTION(name, function) {#name, reinterpret_cast<void*>(&function)},
const Function kFunctions[] = {
    PLIMSOLL_FUNCTION(cuMemAddressReserve, reserve) PLIMSOLL_FUNCTION(
        cuMemAddressFree, unreserve) PLIMSOLL_FUNCTION(cuMemCreate, create)
        PLIMSOLL_FUNCTION(cuMemRelease, release) PLIMSOLL_FUNCTION(cuMemMap, map) PLIMSOLL_FUNCTION(
            cuMemSetAccess, set_access) PLIMSOLL_FUNCTION(cuMemUnmap, unmap)
            PLIMSOLL_FUNCTION(cuMemGetAllocationGranularity, granularity) PLIMSOLL_FUNCTION(
                cuDeviceGet, device) PLIMSOLL_FUNCTION(cuDeviceGetAttribute, attribute)
                PLIMSOLL_FUNCTION(cuGetErrorString, error_string) PLIMSOLL_FUNCTION(
                    cuMemGetAddressRange, unsupported)
                    PLIMSOLL_FUNCTION(cuMemExportToShareableHandle, unsupported) PLIMSOLL_FUNCTION(
                        cuMemImportFromShareableHandle, unsupported)
                        PLIMSOLL_FUNCTION(cuMemRetainAllocationHandle, unsupported)
                            PLIMSOLL_FUNCTION(cuMemGetAllocationPropertiesFromHandle, unsupported)
                                PLIMSOLL_FUNCTION(cuMemsetD32Async, unsupported)
                                    PLIMSOLL_FUNCTION(cuStreamWriteValue32, unsupported)};

}  // namespace

void* oracle_driver_function(const char* name) {
  const auto* const found =
      std::find_if(std::begin(kFunctions), std::end(kFunctions),
                   [&](const Function& function) { return function.name == name; });
  return found == std::end(kFunctions) ? nullptr : found->address;
}
