// The handles of cuBLAS and cuSOLVER. Each handle takes memory of the card outside PyTorch's
// allocator. Each thread that uses a library, such as the main thread or the thread of the backward
// pass, gets its own handle from the device's pool. Later threads reuse the handles of threads that
// have ended.
#pragma once

#include <c10/core/Device.h>

namespace plimsoll::simulated {

// Returns the number of the calling thread's cuBLAS handle. Makes the handle at the first call.
int blas_handle(c10::DeviceIndex device);
// Makes a cuSOLVER handle for the calling thread if the thread has none.
void need_solver_handle(c10::DeviceIndex device);

}  // namespace plimsoll::simulated
