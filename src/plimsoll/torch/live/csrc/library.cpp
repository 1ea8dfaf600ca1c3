// The C functions that Python calls through ctypes.
#include <cstdio>
#include <exception>

#include "allocator.h"
#include "host_allocator.h"

#define PLIMSOLL_EXPORT extern "C" __attribute__((visibility("default")))

// Returns 0 if PyTorch's allocator was replaced, 1 if the table comes from another plimsoll, 2 if
// PyTorch's allocator holds memory already, and 3 if CUDA failed, with the reason on stderr.
PLIMSOLL_EXPORT int plimsoll_bridge_install(const plimsoll_engine_api* table,
                                            plimsoll::live::OpenEngine open) {
  try {
    const plimsoll::live::Installation done = plimsoll::live::install(table, open);
    if (done == plimsoll::live::Installation::done) plimsoll::live::install_host_allocator(open);
    return static_cast<int>(done);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "plimsoll: %s\n", error.what());
    return 3;
  }
}

// Takes over an engine that was opened. If PyTorch cannot use it, PyTorch's next request there
// gives the reason.
PLIMSOLL_EXPORT void plimsoll_bridge_adopt(int device) {
  try {
    plimsoll::live::installed()->adopt(static_cast<c10::DeviceIndex>(device));
  } catch (const std::exception&) {
  }
}
