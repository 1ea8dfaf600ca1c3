// What processes tell each other on simulated GPUs: torch.distributed's groups.
#pragma once

namespace plimsoll::simulated {

class WrittenOut;

void add_collectives(WrittenOut& kernels);

}  // namespace plimsoll::simulated
