// Reports to Python how closely the elastic allocator followed its plan, which gives an address for
// each large request of the program.
#pragma once

#include <nanobind/nanobind.h>

#include "plimsoll/allocator/elastic/elastic.h"

namespace plimsoll::python {

// Each tuple describes one stream. Its first three values are the number of large requests, their
// bytes, and how many of these bytes lie where the stream's plan says. The fourth value is None if
// the allocator still follows the plan. If the allocator dropped the plan, the fourth value is a
// tuple: the number of requests before the drop, the bytes requested in the last step before the
// drop, and how many of these bytes lay where the plan says.
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
