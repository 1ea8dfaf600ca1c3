// What processes tell each other, where there is only one of them.
#pragma once

namespace plimsoll::simulated {

void register_collectives();

}  // namespace plimsoll::simulated
