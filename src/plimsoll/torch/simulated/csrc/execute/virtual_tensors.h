// The kernels of large tensors of the host without contents; see device/virtual.h.
#pragma once

namespace plimsoll::simulated {

void register_virtual_tensors();

}  // namespace plimsoll::simulated
