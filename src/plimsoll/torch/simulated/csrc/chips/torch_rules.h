// Rules that depend on PyTorch's version, from plimsoll/torch_versions.inc.
#pragma once

#include "plimsoll/torch_versions.h"

namespace plimsoll::simulated {

// Returns the rules of the running PyTorch. If plimsoll does not know this version yet, returns the
// rules of the newest known version, and the report says so.
const TorchVersion& torch_rules();

}  // namespace plimsoll::simulated
