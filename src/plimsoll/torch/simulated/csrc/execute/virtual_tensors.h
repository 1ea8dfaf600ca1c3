// Registers the kernels of large host tensors without contents; see device/virtual.h.
#pragma once

namespace plimsoll::simulated {

void register_virtual_tensors();

}  // namespace plimsoll::simulated
