// The handles of cuBLAS and cuSOLVER: PyTorch hands a device's to threads from a pool. The main
// thread has one, and the thread of the backward pass has one. The handles of an ended thread serve
// the next threads. Each handle takes memory of the card beside PyTorch's.
#pragma once

#include <c10/core/Device.h>

namespace plimsoll::simulated {

// The number of the calling thread's handle of cuBLAS; makes it if it has none.
int blas_handle(c10::DeviceIndex device);
// Makes the calling thread's handle of cuSOLVER, if it has none.
void need_solver_handle(c10::DeviceIndex device);

}  // namespace plimsoll::simulated
