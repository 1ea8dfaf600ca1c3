// Derives descriptions of an operation's results from the descriptions of its operands. A
// description states the bounds and the distribution of numbers.
#pragma once

#include "operation/call.h"
#include "values/known.h"
#include "values/written.h"

namespace plimsoll::simulated {

Known describe_written(const Call& call, const Written& written);

}  // namespace plimsoll::simulated
