// Rules that depend on PyTorch's version, from plimsoll/torch_versions.inc.
#pragma once

#include "plimsoll/torch_versions.h"

namespace plimsoll::simulated {

// Returns the rules of the running PyTorch. A version newer than all known ones has the rules of
// the newest, and the report says so.
const TorchVersion& torch_rules();

}  // namespace plimsoll::simulated
