// Plans the place of each large request of one stream. The plan is derived from the sequence of
// these requests in an earlier run of the program.
#pragma once

#include <span>

#include "plimsoll/planning/program_plan.h"
#include "plimsoll/planning/steps.h"

namespace plimsoll {

// Returns the plan. Steps that repeat are planned once. Steps that differ only in their sizes are
// planned as one, with the largest sizes, if that needs hardly more memory.
[[nodiscard]] StreamPlan plan_stream(std::span<const TimedRequest> requests);

}  // namespace plimsoll
