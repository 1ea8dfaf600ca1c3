// Registers torch.distributed's communication between processes on simulated GPUs.
#pragma once

#include "operation/written_out.h"

namespace plimsoll::simulated {

void add_collectives(WrittenOut& kernels);

}  // namespace plimsoll::simulated
