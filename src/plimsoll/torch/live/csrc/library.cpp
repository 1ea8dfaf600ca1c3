// What Python calls, through ctypes.
#include <cstdio>
#include <exception>

#include "allocator.h"
#include "host_allocator.h"

#define PLIMSOLL_EXPORT extern "C" __attribute__((visibility("default")))

// 0: done; 1: the table is of another plimsoll; 2: PyTorch's allocator holds memory already;
// 3: CUDA failed, and stderr says how.
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

// An engine was opened. What keeps PyTorch from it is said when PyTorch asks for memory there.
PLIMSOLL_EXPORT void plimsoll_bridge_adopt(int device) {
  try {
    plimsoll::live::installed()->adopt(static_cast<c10::DeviceIndex>(device));
  } catch (const std::exception&) {
  }
}
