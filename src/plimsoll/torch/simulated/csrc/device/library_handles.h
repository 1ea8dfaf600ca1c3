// The handles of cuBLAS and cuSOLVER. PyTorch gives threads a device's handles from a pool: the
// main thread has one, and so has the thread of the backward pass. Later threads reuse the handles
// of ended ones. Each handle takes memory of the card outside PyTorch's allocator.
#pragma once

#include <c10/core/Device.h>

namespace plimsoll::simulated {

// Returns the number of the calling thread's cuBLAS handle, and makes the handle if necessary.
int blas_handle(c10::DeviceIndex device);
// Makes the calling thread's cuSOLVER handle if it has none.
void need_solver_handle(c10::DeviceIndex device);

}  // namespace plimsoll::simulated
