// The C functions that Python calls through ctypes.
#include <cstdio>
#include <exception>

#include "allocator.h"
#include "host_allocator.h"

#define PLIMSOLL_EXPORT extern "C" __attribute__((visibility("default")))

// Replaces PyTorch's allocator. Returns 0 on success, 1 if the table comes from another build of
// plimsoll, 2 if PyTorch's allocator already holds memory, and 3 if CUDA failed. Before it returns
// 3, it prints the reason on stderr.
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

// Makes PyTorch's allocator take over an engine that is already open. If PyTorch cannot use it,
// PyTorch's next request on that GPU raises the error.
PLIMSOLL_EXPORT void plimsoll_bridge_adopt(int device) {
  try {
    plimsoll::live::installed()->adopt(static_cast<c10::DeviceIndex>(device));
  } catch (const std::exception&) {
  }
}
