// Communication between processes on simulated GPUs: torch.distributed's groups.
#pragma once

#include "operation/written_out.h"

namespace plimsoll::simulated {

void add_collectives(WrittenOut& kernels);

}  // namespace plimsoll::simulated
