#include <unistd.h>

#include "runtime.h"

// NVIDIA's management library, as far as PyTorch's error text asks it: how much memory of the GPU
// each process uses.

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  *device = &oracle_gpu();
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void* processes) {
  struct Process {
    unsigned id;
    unsigned long long used;
  };
  *static_cast<Process*>(processes) = {static_cast<unsigned>(getpid()),
                                       oracle_gpu().dedicated_used()};
  *count = 1;
  return 0;
}

#define PLIMSOLL_UNSUPPORTED(name) \
  int name() { return 3; }
PLIMSOLL_UNSUPPORTED(nvmlDeviceGetNvLinkRemoteDeviceType)
PLIMSOLL_UNSUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
PLIMSOLL_UNSUPPORTED(nvmlSystemGetCudaDriverVersion_v2)

}  // extern "C"
