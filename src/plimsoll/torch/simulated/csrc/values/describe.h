// Describes an operation's results from the descriptions of its operands: bounds and distributions.
#pragma once

#include "operation/call.h"
#include "values/known.h"
#include "values/written.h"

namespace plimsoll::simulated {

Known describe_written(const Call& call, const Written& written);

}  // namespace plimsoll::simulated
