// Plans the place of each large request of one stream. The plan is derived from the sequence of
// these requests in an earlier run of the program.
#pragma once

#include <span>

#include "plimsoll/planning/program_plan.h"
#include "plimsoll/planning/steps.h"

namespace plimsoll {

// Returns the plan. A step that repeats is planned once. Steps that differ only in the sizes of
// their requests are planned as one step if this saves many slots and makes the area hardly higher.
// The place of a request then has the largest size that any of these steps needs there.
[[nodiscard]] StreamPlan plan_stream(std::span<const TimedRequest> requests);

}  // namespace plimsoll
