// What depends on PyTorch's version: the rules of plimsoll/torch_versions.inc.
#pragma once

#include "plimsoll/torch_versions.h"

namespace plimsoll::simulated {

// The rules of the PyTorch that runs. One that is newer than all that are known has the rules of
// the newest, and the report says so.
const TorchVersion& torch_rules();

}  // namespace plimsoll::simulated
