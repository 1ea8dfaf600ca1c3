#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <string_view>

#include "cuda/gpus.h"

// Replaces NVML, NVIDIA's management library. PyTorch opens NVML by name, and calls these functions
// when it writes the text of an out-of-memory error. From them PyTorch learns how much of the GPU's
// memory this process uses.

#pragma GCC visibility push(default)

extern "C" {

int nvmlInit_v2() { return 0; }
// PyTorch asks for the GPU of the failed request, which is the current one.
int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  *device = &plimsoll::wheel::current_gpu();
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses(void* device, unsigned* count, void* processes) {
  struct Process {
    unsigned id;
    unsigned long long used;
  };
  const auto& gpu = *static_cast<plimsoll::wheel::Gpu*>(device);
  std::uint64_t info[3]{};
  if (gpu.api != nullptr) gpu.api->memory_info(gpu.driver, &info[0], &info[1], &info[2]);
  *static_cast<Process*>(processes) = {static_cast<unsigned>(getpid()), info[2]};
  *count = 1;
  return 0;
}

#define PLIMSOLL_MISSING(name) \
  int name() { return 3; }
PLIMSOLL_MISSING(nvmlDeviceGetNvLinkRemoteDeviceType)
PLIMSOLL_MISSING(nvmlDeviceGetNvLinkRemotePciInfo_v2)
PLIMSOLL_MISSING(nvmlSystemGetCudaDriverVersion_v2)

// Takes the place of the C library's dlopen. For NVML's name it opens the library that has this
// code; it opens every other library as usual.
void* dlopen(const char* name, int flags) {
  static const auto open =
      reinterpret_cast<void* (*)(const char*, int)>(dlsym(RTLD_NEXT, "dlopen"));
  Dl_info own{};
  const bool is_nvml = name != nullptr && std::string_view(name) == "libnvidia-ml.so.1";
  if (is_nvml && dladdr(reinterpret_cast<void*>(&nvmlInit_v2), &own) != 0) name = own.dli_fname;
  return open(name, flags);
}

}  // extern "C"

#pragma GCC visibility pop
