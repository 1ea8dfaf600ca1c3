// What an operation's results are like, by what its operands are like.
#pragma once

#include "operation/call.h"
#include "values/known.h"
#include "values/written.h"

namespace plimsoll::simulated {

Known describe_written(const Call& call, const Written& written);

}  // namespace plimsoll::simulated
