// Reports to Python how many bytes an allocator placed where a plan says.
#pragma once

#include <nanobind/nanobind.h>

#include "plimsoll/allocator/elastic/elastic.h"

namespace plimsoll::python {

// Each tuple describes one stream. Its values are the number of large requests, their bytes, how
// many of these bytes lie where the stream's plan says, and whether the allocator dropped the plan.
// None means that it did not. Otherwise the value is a tuple about the drop: the number of requests
// before it, the bytes requested in the last step before it, and how many of these bytes lay where
// the plan says.
inline constexpr const char* kPlanUseSignature =
    "def plan_use(self) -> list[tuple[int, int, int, tuple[int, int, int] | None]]";

inline nanobind::list plan_uses(const ElasticAllocator& allocator) {
  nanobind::list uses;
  for (const PlanUse& use : allocator.plan_use()) {
    nanobind::object dropped = nanobind::none();
    if (use.dropped) {
      dropped =
          nanobind::make_tuple(use.dropped->request, use.dropped->bytes, use.dropped->placed_bytes);
    }
    uses.append(nanobind::make_tuple(use.requests, use.bytes, use.placed_bytes, dropped));
  }
  return uses;
}

}  // namespace plimsoll::python
